"""CUPOOL_IPC=native and openers without the library; and that neither side ever crashes on the other's handles."""
from agents import IpcTest, main

MIB = 1 << 20


class Native(IpcTest):
    def test_an_opener_without_the_library_opens_what_is_exported_natively(self):
        here, bare = self.agent(CUPOOL_IPC="native"), self.agent(preload=False)
        blocks = [here.alloc(MIB), here.alloc(3 * MIB)]
        for value, block in enumerate(blocks, 5):
            here.say("fill", block, MIB, value)
        opened = [bare.opened(here.export(block + 100)) for block in blocks]
        self.assertEqual([bare.say("read", address, MIB) for address in opened], [(0, 5), (0, 6)])
        self.assertEqual(bare.say("range", opened[1]), (0, opened[1], 3 * MIB))
        self.assertEqual(here.registry(), [], "nothing of ours is needed")
        self.assertEqual([bare.say("close", address) for address in opened], [0, 0])

    def test_an_opener_with_the_library_opens_it_too(self):
        here, there = self.agent(CUPOOL_IPC="native"), self.agent()
        block = here.alloc(MIB)
        here.say("fill", block, MIB, 3)
        opened = there.opened(here.export(block))
        self.assertEqual(there.say("read", opened, MIB), (0, 3))
        self.assertEqual(there.say("close", opened), 0)

    def test_exporters_without_the_library(self):
        bare, there = self.agent(preload=False), self.agent()
        block = bare.alloc(MIB)
        bare.say("fill", block, MIB, 3)
        handle = bare.export(block)
        opened = there.opened(handle)
        self.assertEqual(there.opened(handle), opened)
        self.assertEqual(there.say("read", opened, MIB), (0, 3))
        self.assertEqual(there.say("range", opened + 1), (0, opened, MIB))
        self.assertEqual([there.say("close", opened) for _ in range(2)], [0, 0])

    def test_an_opener_without_the_library_is_refused_a_handle_of_ours(self):
        here, bare, off = self.agent(), self.agent(preload=False), self.agent(CUPOOL_POLICY="off")
        handle = here.export(here.alloc(MIB))
        self.assertNotEqual(bare.open(handle)[0], 0)
        self.assertNotEqual(off.open(handle)[0], 0)

    def test_whatever_policy_the_opener_has(self):
        here = self.agent()
        block = here.alloc(MIB)
        here.say("fill", block, MIB, 3)
        for variables in ({"CUPOOL_POLICY": "platform"}, {"CUPOOL_IPC": "native"}, {"CUPOOL_POLICY": "preallocate", "CUPOOL_PREALLOCATE": "64MiB"}):
            there = self.agent(**variables)
            self.assertEqual(there.say("read", there.opened(here.export(block)), MIB), (0, 3))

    def test_the_platform_policy_exports_natively(self):
        here, bare = self.agent(CUPOOL_POLICY="platform"), self.agent(preload=False)
        block = here.alloc(MIB)
        here.say("fill", block, MIB, 3)
        self.assertEqual(bare.say("read", bare.opened(here.export(block)), MIB), (0, 3))


if __name__ == "__main__":
    main()
