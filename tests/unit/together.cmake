# compile_tests_together(FOLDER): compiles the files named *_test.cpp of each test binary of FOLDER several at a time, because Catch and the
# library's headers cost as much as three of them. Each file gets a namespace of its own, so that names of different files never clash; all that
# they include comes before those namespaces, so that the include guards make their own #include lines empty. -DCUPOOL_UNITY=OFF compiles them one
# by one.
set(CUPOOL_TESTS_TOGETHER 26)  # files in one compilation

function(compile_tests_together folder)
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      get_target_property(sources ${target} SOURCES)
      compile_sources_together(${target} "${folder}" "${sources}")
    endif()
  endforeach()
endfunction()

function(compile_sources_together target folder sources)
  set(includes "#pragma once\n")
  set(tests 0)
  foreach(source ${sources})
    get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${folder}")
    if(NOT source MATCHES "_test\\.cpp$")
      set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      continue()
    endif()
    math(EXPR tests "${tests} + 1")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")  # its #include lines are read below
    file(STRINGS "${source}" lines REGEX "^#include [<\"].*[>\"]")
    foreach(line ${lines})
      # A neighbour of the file, which it names without the folder. Tables of macros (.def) are no headers: they stay where they are included.
      string(REGEX REPLACE "^#include \"([^/\"]+)\".*" "#include \"${folder}/\\1\"" line "${line}")
      if(NOT line MATCHES "\\.def\"")
        string(APPEND includes "${line}\n")
      endif()
    endforeach()
  endforeach()
  if(tests LESS 2)
    return()
  endif()
  set(before "${CMAKE_CURRENT_BINARY_DIR}/${target}_includes.hpp")
  file(CONFIGURE OUTPUT "${before}" CONTENT "${includes}" @ONLY)  # touches the file only where its content changes
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${CUPOOL_TESTS_TOGETHER} UNITY_BUILD_UNIQUE_ID CUPOOL_TEST_FILE
    UNITY_BUILD_CODE_BEFORE_INCLUDE "#include \"${before}\"\nnamespace CUPOOL_TEST_FILE {"
    UNITY_BUILD_CODE_AFTER_INCLUDE "}  // of this file")
endfunction()
