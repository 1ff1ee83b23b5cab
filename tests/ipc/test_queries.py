"""What an opener is told of opened memory: the block, never the region; and what exporters are told of bad arguments."""
from agents import LAZY, IpcTest, main

MIB = 1 << 20


class Queries(IpcTest):
    def setUp(self):
        super().setUp()
        self.here, self.there = self.agent(), self.agent()
        self.blocks = [self.here.alloc(MIB), self.here.alloc(300_001), self.here.alloc(MIB)]
        self.handles = [self.here.export(block) for block in self.blocks]

    def test_range_and_attributes_are_the_blocks(self):
        opened = [self.there.opened(handle) for handle in self.handles[:2]]
        self.assertEqual(self.there.say("range", opened[1] + 300_000), (0, opened[1], 300_001))
        first, second = (self.there.say("attributes", address + 9) for address in opened)
        self.assertEqual((first[:3], second[:3]), ((0, opened[0], MIB), (0, opened[1], 300_001)))
        self.assertNotEqual(first[3], second[3], "each has its buffer id")

    def test_what_lies_between_opened_blocks_is_unknown(self):
        opened = self.there.opened(self.handles[0])
        between = opened + self.blocks[1] - self.blocks[0]
        bare = self.agent(preload=False)
        self.assertEqual(self.there.say("range", between)[0], bare.say("range", 0x7000)[0])
        self.assertEqual(self.there.say("attributes", between)[0], bare.say("attributes", 0x7000)[0])
        self.assertEqual(self.there.say("memops", between, 1), bare.say("memops", 0x7000, 1))

    def test_sync_memops_belongs_to_the_block(self):
        opened = [self.there.opened(handle) for handle in self.handles[:2]]
        self.assertEqual([self.there.say("memops", address, 1) for address in opened], [0, 0])
        self.assertEqual(self.there.say("memops", opened[0], 0), 0)
        self.assertEqual([self.there.say("attributes", address)[4] for address in opened], [0, 1])

    def test_what_was_opened_is_not_exported_again(self):
        opened = self.there.opened(self.handles[1])
        self.assertEqual(self.there.export_any(opened)[0], self.agent(preload=False).export_any(0x7000)[0])

    def test_what_is_not_a_live_block_is_not_exported(self):
        bad = self.agent(preload=False).export_any(0x7000)[0]
        self.assertEqual(self.here.export_any(0x7000)[0], bad)
        self.here.say("free", self.blocks[0])
        self.assertEqual(self.here.export_any(self.blocks[0])[0], bad)

    def test_opening_ones_own_handle_fails_as_natively(self):
        bare = self.agent(preload=False)
        own = bare.export(bare.alloc(MIB))
        self.assertEqual(self.here.open(self.handles[0])[0], bare.open(own)[0])
        self.here.say("free", self.blocks[0])
        self.assertEqual(self.here.open(self.handles[0])[0], bare.open("00" * 64)[0], "and one of a block that is gone as a bad one")

    def test_answers_that_have_no_place_are_refused_as_natively(self):
        bare, other = self.agent(preload=False), self.agent(preload=False)
        handle = bare.export(bare.alloc(MIB))
        opened, native = self.there.opened(self.handles[0]), other.opened(handle)
        for words in ("nowhere", self.handles[0], handle), ("memops_nothing", opened, native):
            self.assertEqual(self.there.say(words[0], words[1]), other.say(words[0], words[2]), words[0])
        on_pages = self.agent(CUPOOL_BACKING="pages")
        self.assertEqual(on_pages.say("export_nowhere", on_pages.alloc(MIB)), bare.say("export_nowhere", bare.alloc(MIB)))

    def test_what_lies_on_pages_is_refused_for_another_reason_first(self):
        bare, on_pages = self.agent(preload=False), self.agent(CUPOOL_BACKING="pages")
        answers = []
        for agent in (bare, on_pages):
            block = agent.alloc(MIB)
            agent.say("context", "none")
            answers.append(agent.export_any(block)[0])
        self.assertEqual(*answers)

    def test_bad_flags_are_the_drivers_to_refuse(self):
        bare = self.agent(preload=False)
        bad = bare.open("00" * 64, 0)[0]
        self.assertEqual(self.there.open(self.handles[0], 0)[0], bad)
        self.there.opened(self.handles[0])
        self.assertEqual(self.there.open(self.handles[0], 0)[0], bad, "also when the region is open already")
        self.assertEqual(self.there.open(self.handles[0], LAZY)[0], 0)


if __name__ == "__main__":
    main()
