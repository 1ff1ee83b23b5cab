"""cuIpcCloseMemHandle: references, the region behind the blocks, and misuse, which gets the driver's own codes."""
from agents import DELAYS, LIBRARY, IpcTest, main

SIZE = 1 << 19  # of the blocks: several fit in the pool's first region
NOT_OPEN = "cuIpcCloseMemHandle of an address that is not open (closed twice?)"


class Closing(IpcTest):
    def setUp(self):
        super().setUp()
        self.here, self.there = self.agent(), self.agent()

    def share(self, count):
        blocks = [self.here.alloc(SIZE) for _ in range(count)]
        return blocks, [self.here.export(block) for block in blocks]

    def closes(self):
        return self.there.say("calls", "cuIpcCloseMemHandle")

    def test_as_many_closes_as_opens(self):
        (block,), (handle,) = self.share(1)
        opened = self.there.opened(handle)
        self.assertEqual(self.there.opened(handle), opened)
        self.assertEqual(self.there.say("close", opened), 0)
        self.assertEqual(self.there.say("range", opened), (0, opened, SIZE))
        self.assertEqual(self.closes(), 0)
        self.assertEqual(self.there.say("close", opened), 0)
        self.assertEqual(self.closes(), 1)
        self.assertNotEqual(self.there.say("range", opened)[0], 0)

    def test_the_region_stays_until_its_last_block_is_closed_and_can_be_opened_again(self):
        blocks, handles = self.share(3)
        opened = [self.there.opened(handle) for handle in handles]
        self.here.say("fill", blocks[2], SIZE, 5)
        for address in opened[:2]:
            self.assertEqual(self.there.say("close", address), 0)
        self.assertEqual(self.closes(), 0)
        self.assertEqual(self.there.say("read", opened[2], SIZE), (0, 5))
        self.assertNotEqual(self.there.say("range", opened[0])[0], 0, "closed, though its region is open")
        self.assertNotEqual(self.there.say("attributes", opened[1] + 8)[0], 0)
        self.assertEqual(self.there.say("close", opened[2]), 0)
        self.assertEqual(self.closes(), 1)
        self.assertEqual(self.there.say("read", self.there.opened(handles[2]), SIZE), (0, 5))

    def test_closing_a_block_waits_for_the_work_on_it_though_its_region_stays(self):
        blocks, handles = self.share(2)
        opened = [self.there.opened(handle) for handle in handles]
        self.assertEqual(self.there.say("launch", opened[0], SIZE, 42), 0)
        self.assertEqual(self.here.say("read", blocks[0], 4), (0, 0), "not yet")
        self.assertEqual(self.there.say("close", opened[0]), 0)
        self.assertEqual(self.here.say("read", blocks[0], SIZE), (0, 42))

    def test_the_last_of_two_threads_that_close_a_block_waits_for_the_work_on_it(self):
        self.there = self.agent(LD_PRELOAD=f"{DELAYS}:{LIBRARY}")  # it decides under one lock and waits under none
        _, handles = self.share(2)
        self.there.opened(handles[1])
        self.assertEqual(self.there.say("close_race", handles[0], SIZE), 0)
        self.assertEqual(self.closes(), 0)

    def test_closing_a_block_in_a_relaxed_capture_waits_and_ends_no_capture(self):
        blocks, handles = self.share(2)
        opened = [self.there.opened(handle) for handle in handles]
        self.assertEqual(self.there.say("launch", opened[0], SIZE, 42), 0)
        self.assertEqual(self.there.say("capture", "relaxed"), 0)
        self.assertEqual(self.there.say("close", opened[0]), 0)
        self.assertEqual(self.there.say("capture", "end"), 0)
        self.assertEqual(self.here.say("read", blocks[0], SIZE), (0, 42))
        self.assertEqual(self.there.say("close", opened[1]), 0)

    def test_misuse_gets_the_drivers_code_and_harms_nobody(self):
        blocks, handles = self.share(2)
        opened = [self.there.opened(handle) for handle in handles]
        native = self.native_code("close", 0x7000)
        self.there.say("close", opened[1])
        self.assertEqual(self.there.say("close", opened[1]), native, "closed twice")
        self.assertEqual(self.there.say("close", opened[0] + 512), native, "an interior address")
        own = self.there.alloc(SIZE)
        self.assertEqual(self.there.say("close", own), native, "a block of its own")
        self.assertEqual(self.there.say("close", 0x7000), native)
        freed = self.native_code("free", 0x7000)
        for address in (opened[0], opened[0] + 512, opened[1]):
            self.assertEqual(self.there.say("free", address), freed, "an opened pointer is not the opener's to free")
        self.here.say("fill", blocks[0], SIZE, 8)
        self.assertEqual(self.there.say("read", opened[0], SIZE), (0, 8))
        self.assertEqual(self.there.say("fill", own, SIZE, 1), 0)
        no_free = "cuMemFree_v2 of an address that is not allocated (double free?)"
        self.expect_violations(self.there, *[NOT_OPEN] * 4, *[no_free] * 3)

    def test_the_first_block_of_a_region_is_not_the_region(self):
        blocks, handles = self.share(2)
        code, start, _ = self.here.say("range", blocks[0])
        opened = self.there.opened(handles[1])
        first = opened - (blocks[1] - start)
        self.assertEqual(self.there.say("close", first), self.native_code("close", 0x7000), "not open: only its neighbour is")
        self.assertEqual(self.there.say("free", first), self.native_code("free", 0x7000))
        self.assertEqual(self.there.say("range", opened), (0, opened, SIZE))
        self.expect_violations(self.there, NOT_OPEN, "cuMemFree_v2 of an address that is not allocated (double free?)")

    def test_without_a_context_the_driver_answers(self):
        _, (handle,) = self.share(1)
        opened = self.there.opened(handle)
        bare = self.agent(preload=False)
        for agent in (bare, self.there):
            agent.say("context", "none")
        self.assertEqual(self.there.say("close", opened), bare.say("close", 0x7000))
        self.assertEqual(self.there.open(handle)[0], bare.open("00" * 64)[0])
        self.there.say("context", "primary")
        self.assertEqual(self.there.say("close", opened), 0)

    def test_threads_that_open_and_close_the_same_block_never_lose_it(self):
        blocks, handles = self.share(2)
        self.here.say("fill", blocks[1], SIZE, 17)
        self.assertEqual(self.there.say("rounds", handles[1], 17), 0)
        opens, closes = (self.there.say("calls", call) for call in ("cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"))
        self.assertEqual(opens, closes)
        self.assertEqual(self.there.say("read", self.there.opened(handles[1]), SIZE), (0, 17))

    def test_a_close_that_a_capture_forbids_leaves_the_block_open(self):
        blocks, handles = self.share(1)
        opened = self.there.opened(handles[0])
        self.assertEqual(self.there.say("capture", "begin"), 0)
        self.assertNotEqual(self.there.say("close", opened), 0)
        self.there.say("capture", "end")
        self.assertEqual(self.there.say("range", opened), (0, opened, SIZE))
        self.assertEqual(self.there.say("close", opened), 0)
        self.assertEqual(self.closes(), 2)

    def test_neither_does_one_of_a_block_whose_region_stays(self):
        _, handles = self.share(2)
        opened = [self.there.opened(handle) for handle in handles]
        self.assertEqual(self.there.say("capture", "begin"), 0)
        self.assertEqual(self.there.say("close", opened[0]), 900)
        self.assertEqual(self.there.say("capture", "end"), 901)
        self.assertEqual(self.there.say("range", opened[0]), (0, opened[0], SIZE))
        for address in opened:
            self.assertEqual(self.there.say("close", address), 0)


if __name__ == "__main__":
    main()
