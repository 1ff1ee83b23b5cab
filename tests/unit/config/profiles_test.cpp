// The shipped profiles and the generated table agree with the library, value by value.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "loaded.hpp"

using namespace cupool::config;

namespace {

const std::filesystem::path kFolder = CUPOOL_CONFIG_FOLDER;

nlohmann::json json_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

nlohmann::json row_of(const nlohmann::json& table, const std::string& name) {
  for (const nlohmann::json& row : table.at("options")) {
    if (row.at("name") == name) return row;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("every profile is read without a warning, and each of its values counts", "[profiles]") {
  const nlohmann::json table = json_of(kFolder / "options.json");
  int profiles = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder / "profiles")) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path());
    ++profiles;
    const nlohmann::json profile = json_of(entry.path());
    CHECK(profile.at("description").get<std::string>().size() > 20);
    std::vector<std::string> storage;
    for (const auto& [name, value] : profile.at("options").items()) {
      REQUIRE(!row_of(table, name).is_null());
      storage.push_back(row_of(table, name).at("variable").get<std::string>() + "=" + value.get<std::string>());
    }
    const Options options = load(std::vector<std::string_view>(storage.begin(), storage.end()));
    CHECK(options.warnings.empty());
    for (const auto& [name, value] : profile.at("options").items()) {
      INFO(name);
      CHECK(fact_of(options, name).value == value.get<std::string>());
      CHECK(fact_of(options, name).source == Source::environment);
    }
  }
  CHECK(profiles >= 3);
}

TEST_CASE("the generated table lists the options that the library reads, in its order", "[profiles]") {
  const nlohmann::json table = json_of(kFolder / "options.json");
  const Options defaults = load_from({});
  REQUIRE(table.at("options").size() == defaults.facts.size());
  for (std::size_t i = 0; i < defaults.facts.size(); ++i) {
    const nlohmann::json& row = table.at("options")[i];
    INFO(row.dump());
    CHECK(row.at("name") == defaults.facts[i].name);
    if (row.at("type") == "choice") CHECK(row.at("default") == defaults.facts[i].value);
    for (const nlohmann::json& word : row.value("values", nlohmann::json::array())) {
      const Options options = load_from({row.at("variable").get<std::string>() + "=" + word.get<std::string>()});
      CHECK(options.warnings.empty());
      CHECK(fact_of(options, row.at("name").get<std::string>()).value == word.get<std::string>());
    }
  }
}
