"""Ends: of the block, of a context, of the exporter by exit and by SIGKILL; forks; what dead processes leave behind."""
import os

from agents import FOLDER, IpcTest, main

MIB = 1 << 20


class Ends(IpcTest):
    def setUp(self):
        super().setUp()
        self.here, self.there = self.agent(), self.agent()
        self.invalid = self.native_code("open", "00" * 64, 1)[0]

    def test_a_freed_block_does_not_open(self):
        block, kept = self.here.alloc(MIB), self.here.alloc(MIB)
        handle, other = self.here.export(block), self.here.export(kept)
        self.here.say("free", block)
        self.assertEqual(self.there.open(handle)[0], self.invalid)
        self.assertEqual(self.there.open(other)[0], 0, "its neighbour does")
        self.assertEqual(self.there.open(handle)[0], self.invalid, "also when the region is open")

    def test_a_handle_does_not_open_the_next_block_at_the_same_place(self):
        self.here = self.agent(CUPOOL_FREE="immediate")
        block = self.here.alloc(MIB)
        handle = self.here.export(block)
        self.here.say("free", block)
        self.assertEqual(self.here.alloc(MIB), block)
        new = self.here.export(block)  # the same entry of the registry, used again
        self.assertEqual(self.there.open(handle)[0], self.invalid)
        self.assertEqual(self.there.open(new)[0], 0)

    def test_a_region_given_back_and_taken_again_is_another(self):
        self.here = self.agent(CUPOOL_FREE="immediate", CUPOOL_RELEASE_THRESHOLD="0")
        block = self.here.alloc(8 * MIB)
        old = self.here.export(block)
        self.here.say("free", block)
        self.assertEqual(self.here.say("calls", "cuMemFree_v2") + self.here.say("calls", "cuMemFreeAsync"), 1, "the region went back to the driver")
        block = self.here.alloc(8 * MIB)
        self.here.say("fill", block, 8 * MIB, 6)
        opened = self.there.opened(self.here.export(block))
        self.assertEqual(self.there.say("read", opened, 8 * MIB), (0, 6))
        self.assertEqual(self.there.open(old)[0], self.invalid)

    def test_exports_die_with_their_context(self):
        kept = self.here.export(self.here.alloc(MIB))
        self.here.say("context", "new")
        handle = self.here.export(self.here.alloc(MIB))
        self.assertEqual(self.here.say("context", "destroy"), 0)
        self.here.say("context", "primary")
        self.assertEqual(self.there.open(handle)[0], self.invalid)
        self.assertEqual(self.there.open(kept)[0], 0)

    def test_openings_die_with_their_context(self):
        block = self.here.alloc(MIB)
        handle = self.here.export(block)
        self.here.say("fill", block, MIB, 4)
        self.there.say("context", "new")
        opened = self.there.opened(handle)
        self.assertEqual(self.there.say("context", "destroy"), 0)
        self.there.say("context", "new")  # which may get the handle of the one that is gone
        self.assertEqual(self.there.say("read", self.there.opened(handle), MIB), (0, 4))
        self.assertEqual(self.there.say("context", "destroy"), 0)
        self.there.say("context", "primary")
        self.assertNotEqual(self.there.say("range", opened)[0], 0)
        again = self.there.opened(handle)
        self.assertEqual(self.there.say("read", again, MIB), (0, 4))
        self.assertEqual(self.there.say("calls", "cuIpcOpenMemHandle_v2"), 3)

    def test_a_dead_contexts_addresses_are_the_drivers_again(self):
        bare = self.agent(preload=False)
        native = bare.export(bare.alloc(2 * MIB))
        handle = self.here.export(self.here.alloc(4096))
        self.there.say("context", "new")
        opened = self.there.opened(handle)
        self.there.say("context", "destroy")
        self.there.say("context", "primary")
        self.assertEqual(self.there.opened(native), opened, "the simulated driver hands the address out again")
        self.assertEqual(self.there.say("range", opened), (0, opened, 2 * MIB))
        self.assertEqual(self.there.say("close", opened), 0)
        self.assertNotEqual(self.there.say("range", opened)[0], 0)

    def test_the_registry_comes_with_the_first_export_and_goes_at_exit(self):
        self.here.alloc(MIB)
        self.assertEqual(self.here.registry(), [])
        handle = self.here.export(self.here.alloc(MIB))
        (registry,) = self.here.registry()
        self.assertEqual(registry.stat().st_mode & 0o7777, 0o600)
        self.here.end()
        self.assertEqual(self.here.registry(), [])
        self.assertEqual(self.there.open(handle)[0], self.invalid)

    def test_what_is_closed_while_the_process_exits_never_reaches_the_driver_as_a_block(self):
        self.here.alloc(4096)
        opened = self.there.opened(self.here.export(self.here.alloc(4096)))
        self.assertEqual(self.there.say("at_exit", opened), 0)
        self.assertEqual(self.there.end()["violations"], [])

    def test_a_child_leaves_its_parents_exports_alone(self):
        handle = self.here.export(self.here.alloc(MIB))
        self.assertEqual(self.here.say("fork_child"), 7)
        self.assertEqual(len(self.here.registry()), 1)
        self.assertEqual(self.there.open(handle)[0], 0)

    def test_what_a_killed_exporter_leaves_opens_nothing_and_the_next_one_removes_it(self):
        handle = self.here.export(self.here.alloc(MIB))
        (left,) = self.here.registry()
        self.here.kill()  # from here on any exporter of this user may remove it
        self.assertEqual(self.there.open(handle)[0], self.invalid)
        foreign = FOLDER / "ipc.notes"  # not a name of ours: nobody removes it
        foreign.touch(0o600)
        try:
            self.there.export(self.there.alloc(MIB))
            self.assertFalse(left.exists())
            self.assertTrue(foreign.exists())
        finally:
            foreign.unlink()

    def test_an_exporter_that_is_still_running_keeps_its_registry(self):
        handle = self.here.export(self.here.alloc(MIB))
        third = self.agent()
        third.export(third.alloc(MIB))
        self.assertEqual(len(self.here.registry()), 1)
        self.assertEqual(self.there.open(handle)[0], 0)

    def test_a_name_left_by_the_program_before_exec_is_taken_over(self):
        ticks = open(f"/proc/{self.here.pid}/stat").read().rsplit(")", 1)[1].split()[19]
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        left = FOLDER / f"ipc.{self.here.pid}.{ticks}"
        os.close(os.open(left, os.O_CREAT | os.O_EXCL, 0o600))
        handle = self.here.export(self.here.alloc(MIB))
        self.assertEqual(self.there.open(handle)[0], 0)


if __name__ == "__main__":
    main()
