"""What a file of cupool's may take the place of: files and links to files, never a device, a pipe or a folder."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path

import support  # noqa: F401  # finds cupool_lib

from cupool_lib.output_file import is_replaceable, write_atomically


class OutputFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def test_a_file_is_whole_and_the_users_own(self):
        target = self.folder / "made" / "report.json"
        write_atomically(target, "text\n")
        self.assertEqual((target.read_text(), target.stat().st_mode & 0o777, self.names()), ("text\n", 0o600, ["made"]))
        write_atomically(target, "newer\n")
        self.assertEqual((target.read_text(), os.listdir(target.parent)), ("newer\n", ["report.json"]))

    def test_devices_pipes_and_links_to_them_stay(self):
        pipe, far, near, descriptor = (self.folder / name for name in ("pipe", "far", "near", "descriptor"))
        os.mkfifo(pipe)
        far.symlink_to("/dev/null")
        near.symlink_to(pipe)
        descriptor.symlink_to("/proc/self/fd/1")
        before = self.names()
        for target in (pipe, far, near, descriptor):
            self.assertFalse(is_replaceable(target), target)
            with self.assertRaisesRegex(OSError, "not a regular file"):
                write_atomically(target, "text")
        self.assertEqual((self.names(), pipe.is_fifo(), [link.is_symlink() for link in (far, near, descriptor)]), (before, True, [True] * 3))

    def test_a_folder_is_refused(self):
        with self.assertRaises(IsADirectoryError):
            write_atomically(self.folder, "text")
        self.assertEqual(self.names(), [])

    def test_a_link_to_a_file_is_replaced_and_what_it_led_to_stays(self):
        other, link, nowhere = self.folder / "other", self.folder / "link", self.folder / "nowhere"
        other.write_text("somebody's")
        link.symlink_to(other)
        nowhere.symlink_to(self.folder / "missing")
        for target in (link, nowhere):
            write_atomically(target, "text")
            self.assertEqual((target.is_symlink(), target.read_text()), (False, "text"))
        self.assertEqual((other.read_text(), self.names()), ("somebody's", ["link", "nowhere", "other"]))

    def test_folders_by_links_of_another_user_are_refused(self):
        elsewhere, theirs, ours, circle = (self.folder / name for name in ("elsewhere", "theirs", "ours", "circle"))
        elsewhere.mkdir()
        theirs.symlink_to(elsewhere)
        ours.symlink_to("elsewhere")
        circle.symlink_to("circle")
        write_atomically(ours / "made" / ".." / "report.json", "text")
        self.assertEqual(sorted(os.listdir(elsewhere)), ["made", "report.json"])
        with self.assertRaisesRegex(OSError, "Too many levels"):
            write_atomically(circle / "report.json", "text")
        try:
            os.chown(theirs, 65000, 65000, follow_symlinks=False)
        except OSError as error:
            self.skipTest(f"this user cannot give a link to another one: {error}")
        for target in (theirs / "new.json", theirs / "new" / "new.json"):
            with self.assertRaisesRegex(OSError, "symbolic link"):
                write_atomically(target, "text")
        self.assertEqual(sorted(os.listdir(elsewhere)), ["made", "report.json"])


if __name__ == "__main__":
    unittest.main()
