"""Bytes and addresses: what one process exports, another opens, in both ways that callers compute offsets."""
from agents import IpcTest, main

KIB, MIB = 1 << 10, 1 << 20


class Sharing(IpcTest):
    def test_the_opener_sees_the_block_and_its_bytes_both_ways(self):
        here, there = self.agent(), self.agent()
        before, block = here.alloc(3 * MIB), here.alloc(100_000)
        here.say("fill", before, 3 * MIB, 1)
        here.say("fill", block, 100_000, 9)
        raw = there.opened(here.export(block))  # the exported pointer is the opened one
        self.assertEqual(there.say("read", raw, 100_000), (0, 9))
        code, base, size = here.say("range", block + 777)  # (handle of an interior pointer, base, offset)
        self.assertEqual((code, base, size), (0, block, 100_000))
        computed = there.opened(here.export(block + 777)) + (block + 777 - base)
        self.assertEqual(computed, raw + 777)
        there.say("fill", raw + 777, 5, 77)
        self.assertEqual(here.say("read", block + 777, 5), (0, 77))
        self.assertEqual(here.say("read", block + 782, 1000), (0, 9))
        self.assertEqual(here.say("read", before, 3 * MIB), (0, 1))

    def test_blocks_of_one_region_are_opened_side_by_side_and_the_region_once(self):
        here, there = self.agent(), self.agent()
        blocks = [here.alloc(64 * KIB) for _ in range(20)]
        handles = [here.export(block) for block in blocks]
        self.assertEqual(len(set(handles)), 20)
        opened = [there.opened(handle) for handle in handles]
        for value, block in enumerate(blocks):
            here.say("fill", block, 64 * KIB, value)
        self.assertEqual([there.say("read", block, 64 * KIB) for block in opened], [(0, value) for value in range(20)])
        self.assertEqual([there.say("range", block + 5) for block in opened], [(0, block, 64 * KIB) for block in opened])
        self.assertEqual(there.say("calls", "cuIpcOpenMemHandle_v2"), 1)
        self.assertEqual(here.say("calls", "cuMemAlloc_v2"), 1, "they share a region")

    def test_the_handle_of_a_block_stays_the_same_while_it_lives(self):
        here = self.agent()
        block = here.alloc(MIB)
        handle = here.export(block)
        self.assertEqual(here.export(block + 4096), handle)
        here.say("free", block)
        again = here.alloc(MIB)
        self.assertNotEqual(here.export(again), handle)

    def test_both_versions_of_the_call_open(self):
        here, there = self.agent(), self.agent()
        handle = here.export(here.alloc(MIB))
        self.assertEqual(there.open(handle, word="open1"), there.open(handle))

    def test_one_process_opens_from_two_exporters_and_they_from_each_other(self):
        first, second, third = self.agent(), self.agent(), self.agent()
        own = {agent: agent.alloc(MIB) for agent in (first, second)}
        for value, agent in enumerate(own, 1):
            agent.say("fill", own[agent], MIB, value)
        handles = {agent: agent.export(own[agent]) for agent in own}
        self.assertEqual(third.say("read", third.opened(handles[first]), MIB), (0, 1))
        self.assertEqual(third.say("read", third.opened(handles[second]), MIB), (0, 2))
        self.assertEqual(second.say("read", second.opened(handles[first]), MIB), (0, 1))
        self.assertEqual(first.say("read", first.opened(handles[second]), MIB), (0, 2))

    def test_more_blocks_than_one_chunk_of_the_registry_holds(self):
        here, there = self.agent(), self.agent()
        blocks = [here.alloc(512) for _ in range(1200)]
        handles = [here.export(block) for block in blocks]
        for index in (0, 510, 511, 512, 1023, 1199):
            here.say("fill", blocks[index], 512, index % 251)
            self.assertEqual(there.say("read", there.opened(handles[index]), 512), (0, index % 251))
        for block in blocks:
            here.say("free", block)
        self.assertNotEqual(there.open(handles[7])[0], 0)

    def test_a_registry_grows_although_the_program_closed_its_descriptor(self):
        here, there = self.agent(), self.agent()
        for _ in range(500):
            here.export(here.alloc(512))
        handle = None
        here.say("fork_child")
        first = here.alloc(512)
        handles = [here.export(first)]
        here.say("close_files_above_900")
        for _ in range(100):
            handle = here.export(here.alloc(512))
        self.assertEqual(there.open(handle)[0], 0)
        self.assertEqual(there.open(handles[0])[0], 0)

    def test_a_block_used_again_behind_an_opener_that_has_not_closed_yet(self):
        here, there = self.agent(CUPOOL_FREE="immediate"), self.agent()
        block = here.alloc(MIB)
        opened = there.opened(here.export(block))
        here.say("free", block)
        smaller = here.alloc(MIB // 2)
        self.assertEqual(smaller, block, "the pool handed the address out again")
        reopened = there.opened(here.export(smaller))
        self.assertEqual(reopened, opened)
        self.assertEqual(there.say("range", opened), (0, opened, MIB // 2))
        self.assertEqual(there.say("close", opened), 0)  # what the opener still had of the first
        here.say("fill", smaller, MIB // 2, 3)
        self.assertEqual(there.say("read", reopened, MIB // 2), (0, 3))
        self.assertEqual(there.say("range", reopened), (0, reopened, MIB // 2))
        self.assertEqual(there.say("close", reopened), 0)
        self.assertNotEqual(there.say("range", reopened)[0], 0)


if __name__ == "__main__":
    main()
