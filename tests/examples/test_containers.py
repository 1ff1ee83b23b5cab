"""Dockerfile, compose file, dev container and pod: parsed, their paths and variables held against what is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import dockerfile
import place
from place import EXAMPLES, ROOT

try:
    import yaml
except ImportError:
    yaml = None

TAG = "cupool-example:0.1.0"
ARGUMENTS, (BUILD_STAGE, FINAL_STAGE) = dockerfile.read((EXAMPLES / "docker" / "Dockerfile").read_text(encoding="utf-8"))


class Containers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def assert_taken(self, variables: dict[str, str]):
        """The library takes each of these CUPOOL_* variables with its value, and a report is left under the name that they give."""
        ours = {name: value.replace("/reports/", f"{self.folder}/reports/") for name, value in variables.items() if name.startswith("CUPOOL_")}
        self.assertIn("CUPOOL_REPORT", ours)
        result = place.run("cupool", "run", "--", "cupool", "fill", "--to", "1GiB", env=place.simulated(**ours))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        (report,) = (self.folder / "reports").iterdir()
        options = json.loads(report.read_text(encoding="utf-8"))["options"]
        self.assertEqual({name: options[name[7:].lower()]["source"] for name in ours}, dict.fromkeys(ours, "env"))
        shutil.rmtree(self.folder / "reports")


class Docker(Containers):
    def test_what_it_copies_is_enough_to_build_from_and_there(self):
        for origin, sources, target in BUILD_STAGE.copies():
            self.assertEqual(origin, "")
            for source in sources:
                destination = self.folder / (target if len(sources) == 1 else source)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, destination, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, destination)
        (configure,) = re.findall(r"cmake (--preset [^&]*)&&", BUILD_STAGE.all_of("RUN")[1])
        result = subprocess.run(["cmake", *configure.split(), f"-DCUPOOL_CUDA_INCLUDE={place.CUDA_INCLUDE}"], cwd=self.folder, capture_output=True,
                                text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("build libcupool.so:", (self.folder / "build" / "build.ninja").read_text(encoding="utf-8"))

    def test_it_installs_the_packages_that_a_build_needs(self):
        setup = (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8")
        packages = re.findall(r"apt-get install -y --no-install-recommends (.*?)&&", BUILD_STAGE.all_of("RUN")[0])[0].split()
        only_here = {"ca-certificates", "python3-pip"}
        for package in set(packages) - only_here:
            self.assertIn(f"={package}\"", setup)
        for header in ("nlohmann-json3-dev", "libspdlog-dev", "libfmt-dev", "cmake", "ninja-build", "g++", "python3"):
            self.assertIn(header, packages)

    def test_the_function_that_it_calls_exists(self):
        (called,) = re.findall(r"scripts/setup.sh; (\w+)'", BUILD_STAGE.all_of("RUN")[1])
        self.assertIn(f"{called}() {{", (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8"))

    def test_its_entry_point_runs_a_program_with_what_it_installs(self):
        (install,) = re.findall(r"cmake --install build --prefix (\S+)(.*)$", BUILD_STAGE.all_of("RUN")[1])
        prefix = place.installed(*install[1].split())
        (origin, (source,), target), *others = FINAL_STAGE.copies()
        self.assertEqual((origin, source, target), (BUILD_STAGE.name, install[0], install[0]))
        for _, sources, _ in others:
            self.assertTrue(all((ROOT / path).is_file() for path in sources))
        for name in ("LICENSE", "NOTICE"):  # whoever hands the image on hands these on
            self.assertEqual((prefix / "share" / "doc" / "cupool" / name).read_bytes(), (ROOT / name).read_bytes())
        environment = FINAL_STAGE.environment()
        self.assertEqual(environment["PATH"], f"{target}/bin:$PATH")
        entry = json.loads(FINAL_STAGE.all_of("ENTRYPOINT")[0])
        self.assertTrue((prefix / "bin" / entry[0]).is_file())
        result = place.run(prefix / "bin" / entry[0], *entry[1:], "sh", "-c", "echo $LD_PRELOAD")
        self.assertEqual((result.returncode, result.stdout.strip()), (0, str(prefix / "lib" / "libcupool.so")), result.stderr)
        command = json.loads(FINAL_STAGE.all_of("CMD")[0])
        self.assertEqual((command[0], FINAL_STAGE.all_of("WORKDIR")[0] + "/" + command[1]), ("python3", others[0][2]))
        self.assert_taken(environment)

    def test_its_images_have_exact_tags(self):
        self.assertEqual(FINAL_STAGE.base, "${BASE}")
        for image in (BUILD_STAGE.base, ARGUMENTS["BASE"]):
            self.assertRegex(image, r"^[\w./-]+:[\w.-]*\d[\w.-]*$")


class DevContainer(Containers):
    FILE = EXAMPLES / "devcontainer" / "devcontainer.json"

    def test_its_paths_lead_to_the_dockerfile_from_both_places(self):
        build = json.loads(self.FILE.read_text(encoding="utf-8"))["build"]
        for place_of_file in (self.FILE.parent, ROOT / ".devcontainer" / "cupool"):
            for path, wanted in ((build["dockerfile"], EXAMPLES / "docker" / "Dockerfile"), (build["context"], ROOT)):
                folder = place_of_file
                for part in path.split("/"):
                    folder = folder.parent if part == ".." else folder / part
                self.assertEqual(folder, wanted)

    def test_its_variables_are_taken(self):
        variables = json.loads(self.FILE.read_text(encoding="utf-8"))["containerEnv"]
        self.assert_taken({name: value.replace("${containerWorkspaceFolder}", "") for name, value in variables.items()})


@unittest.skipUnless(yaml, "no python3-yaml")
class Compose(Containers):
    def setUp(self):
        super().setUp()
        self.file = EXAMPLES / "compose" / "compose.yaml"
        self.services = yaml.safe_load(self.file.read_text(encoding="utf-8"))["services"]

    def test_the_job_waits_for_doctor_to_find_no_failure(self):
        doctor, train = self.services["doctor"], self.services["train"]
        self.assertEqual(train["depends_on"], {"doctor": {"condition": "service_completed_successfully"}})
        self.assertEqual(doctor["command"], train["command"])
        result = place.run(*doctor["entrypoint"], "true", env=place.simulated())
        self.assertEqual(result.returncode, 0, result.stdout)
        nowhere = place.support.clean_environment(PATH=place.simulated()["PATH"], LD_LIBRARY_PATH=str(self.folder))
        (self.folder / "libcuda.so.1").write_text("not a library")
        result = place.run(*doctor["entrypoint"], "true", env=nowhere)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stdout, r"(?m)^failure  driver ")

    def test_image_build_devices_and_reports(self):
        build = self.services["doctor"]["build"]
        self.assertEqual((self.file.parent / build["context"]).resolve(), ROOT)
        self.assertTrue((ROOT / build["dockerfile"]).is_file())
        for service in self.services.values():
            self.assertEqual(service["image"], TAG)
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            self.assertEqual(device, {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]})
        self.assertIn("./reports:/reports", self.services["train"]["volumes"])

    def test_its_variables_are_taken(self):
        self.assert_taken(self.services["train"]["environment"])


@unittest.skipUnless(yaml, "no python3-yaml")
class Pod(Containers):
    def setUp(self):
        super().setUp()
        documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes" / "pod.yaml").read_text(encoding="utf-8")))
        self.claim, self.train, self.show = documents
        self.readme = (EXAMPLES / "kubernetes" / "README.md").read_text(encoding="utf-8")

    def test_every_mount_has_its_volume_and_every_image_its_tag(self):
        for pod in (self.train, self.show):
            volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
            for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
                self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
                self.assertIn(container["image"], (TAG, ARGUMENTS["BASE"]))
            claims = [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
            self.assertEqual(claims, [self.claim["metadata"]["name"]])

    def test_the_command_lies_where_the_init_container_puts_it(self):
        (init,), (job,) = self.train["spec"]["initContainers"], self.train["spec"]["containers"]
        program, option, source, target = init["command"]
        self.assertEqual((program, option, source), ("cp", "-a", FINAL_STAGE.copies()[0][2] + "/."))
        shutil.copytree(place.installed(), self.folder / "cupool", symlinks=True)  # another path than the one of the installation
        command = Path(job["command"][0])
        self.assertEqual(command.parts[1], Path(target).parts[1])
        result = place.run(self.folder / command.relative_to("/"), *job["command"][1:], "sh", "-c", "echo $LD_PRELOAD",
                           env=place.support.simulator_environment())
        self.assertEqual((result.returncode, result.stdout.strip()), (0, str(self.folder / "cupool/lib/libcupool.so")), result.stderr)

    def test_its_variables_are_taken(self):
        (job,) = self.train["spec"]["containers"]
        self.assert_taken({row["name"]: row["value"] for row in job["env"]})

    def test_the_readme_applies_each_part_and_makes_the_script(self):
        labels = [document["metadata"]["labels"]["part"] for document in (self.claim, self.train, self.show)]
        self.assertEqual(re.findall(r"-l part=(\w+)", self.readme), sorted(set(labels), key=labels.index))
        for pod in (self.train, self.show):
            self.assertIn(f"kubectl logs -f {pod['metadata']['name']}\n", self.readme)
        (volume,) = [volume for volume in self.train["spec"]["volumes"] if "configMap" in volume]
        name, source = re.findall(r"create configmap (\S+) --from-file=(\S+)", self.readme)[0]
        self.assertEqual(name, volume["configMap"]["name"])
        script, path = source.split("=")
        self.assertTrue((ROOT / path).is_file())
        self.assertEqual(self.train["spec"]["containers"][0]["args"], ["python3", f"/job/{script}"])


if __name__ == "__main__":
    unittest.main()
