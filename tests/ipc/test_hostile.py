"""A registry is a file that anything may have written: nothing in it is believed, and nothing in it can crash an opener."""
import contextlib
import fcntl
import os
import struct

from agents import FOLDER, IpcTest, main

MIB = 1 << 20
STRIDE = 128
OFFSET, BYTES, REGION_BYTES, CHECK = 96, 104, 88, 112  # in an entry; see pool/ipc/registry_format.hpp


def checksum(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value


class Hostile(IpcTest):
    def setUp(self):
        super().setUp()
        self.here, self.there = self.agent(), self.agent()
        self.block = self.here.alloc(MIB)
        self.handle = self.here.export(self.block)
        (self.registry,) = self.here.registry()
        self.invalid = self.native_code("open", "00" * 64, 1)[0]

    def refuses(self, why: str) -> None:
        self.assertEqual(self.there.open(self.handle)[0], self.invalid, why)
        self.assertEqual(self.there.say("calls", "cuIpcCloseMemHandle"), self.there.say("calls", "cuIpcCloseMemHandle"))

    def patch(self, at: int, data: bytes) -> None:
        with open(self.registry, "r+b") as file:
            file.seek(at)
            file.write(data)

    def patch_entry(self, at: int, value: int) -> None:
        """With a right checksum, as a hostile exporter would write it."""
        entry = bytearray(self.registry.read_bytes()[STRIDE:2 * STRIDE])
        struct.pack_into("<Q", entry, at, value)
        struct.pack_into("<Q", entry, CHECK, checksum(bytes(entry[4:CHECK])))
        self.patch(STRIDE, bytes(entry))

    def test_the_layout_that_these_tests_patch_is_the_real_one(self):
        entry = self.registry.read_bytes()[STRIDE:2 * STRIDE]
        self.assertEqual(struct.unpack_from("<Q", entry, CHECK)[0], checksum(entry[4:CHECK]))
        self.assertEqual(struct.unpack_from("<Q", entry, BYTES)[0], MIB)
        self.patch_entry(BYTES, MIB - 512)
        opened = self.there.opened(self.handle)
        self.assertEqual(self.there.say("range", opened), (0, opened, MIB - 512))

    def test_blocks_outside_their_region(self):
        for field, value in ((BYTES, 0), (BYTES, 1 << 63), (BYTES, (1 << 64) - 1), (OFFSET, (1 << 64) - MIB), (OFFSET, 1 << 40), (REGION_BYTES, 1)):
            before = self.registry.read_bytes()[STRIDE:2 * STRIDE]
            self.patch_entry(field, value)
            self.refuses(f"{field} = {value:#x}")
            self.patch(STRIDE, before)

    def test_a_region_that_is_shorter_than_its_registry_says(self):
        self.patch_entry(REGION_BYTES, 1 << 50)
        self.patch_entry(OFFSET, 1 << 45)
        self.refuses("inside the claim, outside of what the driver opened")
        self.assertEqual(self.there.say("calls", "cuIpcOpenMemHandle_v2"), 2, "the driver was asked, and then for the code")
        self.assertEqual(self.there.say("calls", "cuIpcCloseMemHandle"), 1, "and what it opened is closed again")

    def test_damage(self):
        whole = self.registry.read_bytes()
        for at in (0, 8, 12, 16, 24, STRIDE, STRIDE + 8, STRIDE + 30, STRIDE + CHECK):
            self.patch(at, bytes([whole[at] ^ 0x55]))
            self.refuses(f"byte {at}")
            self.patch(at, whole[at:at + 1])
        self.assertEqual(self.there.open(self.handle)[0], 0)

    def test_a_file_that_was_cut(self):
        # Not below the exporter's own mapping of it: that is the exporter's to survive or not.
        copy = self.registry.read_bytes()
        for size in (0, 5, STRIDE, STRIDE + 64):
            self.registry.unlink()
            self.write(copy[:size])
            self.refuses(f"{size} bytes")

    def write(self, data: bytes, mode: int = 0o600) -> None:
        file = os.open(self.registry, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.fchmod(file, mode)
        os.write(file, data)
        os.close(file)

    def test_files_that_others_may_write_links_pipes_and_folders(self):
        copy = self.registry.read_bytes()
        self.registry.unlink()
        self.write(copy, 0o666)
        self.refuses("others may write it")
        self.registry.unlink()
        elsewhere = FOLDER / "ipc.target"
        elsewhere.write_bytes(copy)
        elsewhere.chmod(0o600)
        try:
            self.registry.symlink_to(elsewhere)
            self.refuses("a link")
            self.registry.unlink()
        finally:
            elsewhere.unlink()
        os.mkfifo(self.registry, 0o600)
        self.refuses("a pipe")
        self.registry.unlink()
        self.registry.mkdir()
        self.refuses("a folder")
        self.registry.rmdir()

    def test_another_owner(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to give a file away")
        os.chown(self.registry, 12345, -1)
        self.refuses("another user's file")
        os.chown(self.registry, 0, -1)
        self.assertEqual(self.there.open(self.handle)[0], 0)

    def test_a_folder_that_others_may_enter_is_not_trusted(self):
        FOLDER.chmod(0o755)
        try:
            self.refuses("the folder is open to others")
            code, handle = self.there.export_any(self.there.alloc(MIB))[:2]
            self.assertEqual((code, self.there.registry()), (0, []), "nor exported through")
            self.assertEqual(self.here.open(handle)[0], 0, "but through a folder that stands in for it")
        finally:
            FOLDER.chmod(0o700)
        self.assertEqual(self.there.open(self.handle)[0], 0)
        self.there.end()
        for stand_in in FOLDER.parent.glob(f"{FOLDER.name}.*"):
            with contextlib.suppress(OSError):  # not empty
                stand_in.rmdir()

    def test_handles_that_were_changed_on_the_way(self):
        for at in range(0, 64, 3):
            bent = bytearray.fromhex(self.handle)
            bent[at] ^= 0x10
            self.assertEqual(self.there.open(bent.hex())[0], self.invalid, f"byte {at}")
        self.assertEqual(self.there.open("ff" * 64)[0], self.native_code("open", "ff" * 64, 1)[0])

    def test_a_name_that_another_process_holds_is_not_taken(self):
        third = self.agent()
        ticks = open(f"/proc/{third.pid}/stat").read().rsplit(")", 1)[1].split()[19]
        with open(FOLDER / f"ipc.{third.pid}.{ticks}", "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            fcntl.lockf(file, fcntl.LOCK_EX)  # as a namesake in another pid namespace does
            code, handle = third.export_any(third.alloc(MIB))
            self.assertEqual((code, self.there.open(handle)[0]), (0, 0), "it is noted elsewhere, and found there")
        self.assertEqual(third.registry()[0].stat().st_size, 0, "nothing was written into the other's")
        third.registry()[0].unlink()


if __name__ == "__main__":
    main()
