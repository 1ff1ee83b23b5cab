"""`cupool report`: a report as text, the most urgent first: why memory ran out, then each device, leaks, warnings."""

from __future__ import annotations

import os
import re
import signal
import textwrap

from cupool_lib import explain
from cupool_lib.report_file import BadReport, Fields
from cupool_lib.terminal import Paint, count, duration, percent, printable, several, size, size_up

# Of our calls, those that take, map or give back device memory; the others ask or order.
_ALLOCATION_CALLS = ("cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocPitch_v2", "cuMemFree_v2", "cuMemFreeAsync", "cuMemCreate", "cuMemRelease",
                     "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree")
_LEDGER = (
    ("live", "live, as asked for", "green"), ("rounding", "rounding of live blocks", "green"), ("deferred", "freed, waits for the GPU", "cyan"),
    ("free_releasable", "free in the pool, returnable", "blue"), ("free_pinned", "free in the pool, pinned", "magenta"),
    ("metadata", "held by the pool otherwise", "magenta"), ("outside_arrays", "arrays of this process", "yellow"),
    ("outside_program_vmm", "its own cuMemCreate", "yellow"), ("outside_mempools", "idle in memory pools of the driver's", "yellow"),
    ("outside_graphs", "the driver's, for its CUDA graphs", "yellow"),
    ("outside_managed", "its managed memory", "yellow"), ("other_processes", "other processes", "red"),
    ("unattributed", "contexts and others", "red"), ("unknown", "free or others': nobody asked the driver", "dim"),
    ("driver_free", "free at the driver", "dim"))
_PARTS = ("event", "process", "devices")  # without which there is nothing to tell
_LEAKS_SHOWN, _SITES_SHOWN, _OOMS_SHOWN, _PINS_SHOWN, _TIERS_SHOWN = 8, 5, 3, 3, 4
_WRAPPED_MAX = 4000  # textwrap takes the square of a long word's length


def render(report: dict, path: str) -> str:
    root, paint = Fields(report, "", path), Paint()
    if missing := [key for key in _PARTS if key not in report]:
        raise BadReport(f"{path}: /{missing[0]} is missing: this is no whole report")
    lines = _process(root, paint)
    lines += _ooms(root, paint)
    devices = root.items("devices")
    for device in devices:
        lines += _device(device, paint)
    if not devices:
        lines += ["", "No device memory was asked for."]
    lines += _leaks(root, paint) + _quality(root, paint)
    return "\n".join(lines + ["", f"JSON  {os.path.abspath(path)}"]) + "\n"


def _ending(process: Fields, event: str) -> str:
    if process.value.get("exit") is None:
        return {"oom": "written when memory ran out", "request": "written on request"}.get(event, "still running then")
    ending = process.mapping("exit")
    number = ending.value.get("signal")
    if isinstance(number, int):
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    code = ending.value.get("code")
    return f"exit code {code}" if isinstance(code, int) else "ended"


def _process(root: Fields, paint: Paint) -> list[str]:
    process = root.mapping("process")
    rank = process.value.get("rank")
    command = printable(" ".join(process.texts("command"))) or "unknown command"
    who = f"pid {process.integer('pid')} on {printable(process.text('host', 'unknown host'))}" + (f", rank {rank}" if isinstance(rank, int) else "")
    room = paint.width - 16
    head = f"{paint('cupool report', 'bold')}  {command if len(command) <= room else command[:room - 4] + ' ...'}"
    return [head, f"{'':15}{who}; ran {duration(process.integer('duration_ns'))}; {_ending(process, root.text('event'))}{_versions(process)}"]


def _versions(process: Fields) -> str:
    """As far as they are said: older reports say none."""
    driver = process.value.get("driver_version")
    return "".join((f"; cupool {printable(process.text('cupool_version'))}" if process.value.get("cupool_version") else "",
                    f", driver for CUDA {driver // 1000}.{driver % 1000 // 10}" if isinstance(driver, int) and driver else ""))


def _ooms(root: Fields, paint: Paint) -> list[str]:
    ooms = root.items("ooms")
    lines = []
    for oom in ooms[:-_OOMS_SHOWN - 1:-1]:  # what ended the program, if one did, is the newest
        cause = printable(oom.text("cause", "unknown"))
        short = oom.integer("shortfall_bytes")
        lines += ["", paint(f"OUT OF MEMORY on GPU {oom.integer('device')}: {cause}", "red", "bold")
                  + (f", short by {size_up(short)}" if short else "") + f" (confidence {printable(oom.text('confidence', 'unknown'))})",
                  f"  wanted {size(oom.integer('requested_bytes'))} through {printable(oom.text('api'))}{_age(root, oom)}"]
        lines += _wrap(_aftermath(root, oom), "  ", paint)
        meaning, first_to_do = explain.about_cause(cause)
        lines += _wrap(meaning, "  ", paint)
        advice = [f"{'try' if suggestion.text('level') == 'fix' else 'consider'}: {printable(suggestion.text('message'))}{_setting(suggestion)}"
                  for suggestion in oom.items("suggestions") if suggestion.text("level") != "info"]
        for text in advice or ([f"try: {first_to_do}"] if first_to_do else []):  # no setting helps: what does
            lines += _wrap(text, "  ", paint, hanging="    ")
    if len(ooms) > _OOMS_SHOWN:
        lines.append(f"  and {several(len(ooms) - _OOMS_SHOWN, 'earlier one')} in the JSON")
    return lines


def _age(root: Fields, oom: Fields) -> str:
    then, now = oom.integer("time_unix_ns"), root.integer("written_unix_ns")
    return f", {duration(now - then)} before this report" if 0 < then <= now else ""


def _aftermath(root: Fields, oom: Fields) -> str:
    """Programs catch an out-of-memory and go on: it was not the end of them then."""
    before = oom.integer("allocations_before", None)
    devices = [device for device in root.items("devices") if device.integer("ordinal") == oom.integer("device")]
    if before is None or not devices:
        return ""
    since = devices[0].mapping("counters").integer("allocations") - before
    if since <= 0:
        return "nothing was allocated on this GPU since"
    served = oom.flag("served_since")
    size_text = "" if served is None else ", at least one of its size or larger" if served else ", none of its size"
    return f"the program went on: {several(since, 'allocation')} since{size_text}"


def _setting(suggestion: Fields) -> str:
    """What somebody can type, where a number is known that is enough."""
    found = re.search(r"(?:^| )enough_limit_bytes=(\d{1,20})(?: |$)", suggestion.text("evidence"))
    return f": CUPOOL_LIMIT={-(-int(found[1]) // 2**20)}MiB" if found and int(found[1]) else ""


def _wrap(text: str, indent: str, paint: Paint, hanging: str | None = None) -> list[str]:
    if len(text) > _WRAPPED_MAX:
        text = text[:_WRAPPED_MAX] + " ..."
    return textwrap.wrap(text, paint.width, initial_indent=indent, subsequent_indent=indent if hanging is None else hanging)


def _device(device: Fields, paint: Paint) -> list[str]:
    counters = device.mapping("counters")
    live, reserved, outside = (counters.mapping(name) for name in ("live_bytes", "reserved_bytes", "outside_bytes"))
    title = f"GPU {device.integer('ordinal')}  {printable(device.text('name'))}"
    lines = ["", f"{paint(title, 'bold')}  {size(device.integer('total_bytes'))}" + (
        f", limited to {size(device.integer('limit_bytes'))}" if device.integer("limit_bytes") else ""),
             f"  policy         {printable(device.text('policy'))}, backing {printable(device.text('backing'))}",
             f"  peak live      {size(live.integer('peak')):>12}   in {several(counters.mapping('live_blocks').integer('peak'), 'block')} at most; "
             f"now {size(live.integer('current'))}",
             f"  peak reserved  {size(reserved.integer('peak')):>12}   what the pool held of the device; now {size(reserved.integer('current'))}"]
    if outside.integer("peak"):
        lines.append(f"  peak outside   {size(outside.integer('peak')):>12}   what the pool does not serve: arrays, the program's "
                     f"cuMemCreate; now {size(outside.integer('current'))}")
    lines += _fragmentation(device, paint) + _pages(device, counters) + _calls(counters) + _ledger(device, paint) + _sites(device, paint) + _pins(device)
    return lines


def _fragmentation(device: Fields, paint: Paint) -> list[str]:
    now = device.mapping("fragmentation")
    peak = now.mapping("at_peak")

    def one(figures: Fields, name: str) -> str:
        is_unknown = figures.number(name) is None and name != "internal" and figures.integer("free_bytes")
        return "unknown" if is_unknown else percent(figures.number(name))

    def both(name: str) -> str:
        return f"{one(now, name):>9} now, {one(peak, name):>9} at peak"

    utilization = now.number("utilization")
    rows = [f"  external       {both('external')}   {paint('free pool memory outside its largest hole', 'dim')}"]
    if now.number("external_remapped") != now.number("external"):
        rows.append(f"    remapped     {both('external_remapped')}   {paint('the same once pages were remapped', 'dim')}")
    rows.append(f"  internal       {both('internal')}   {paint('live memory that nobody asked for: rounding', 'dim')}")
    rows.append(f"  utilization    {'-' if utilization is None else percent(utilization):>9}   {paint('peak live of peak reserved', 'dim')}")
    return rows


def _pages(device: Fields, counters: Fields) -> list[str]:
    """What moved, and the physical handles by size: those that hold most first."""
    mapped, quarantined = counters.mapping("mapped_bytes"), counters.mapping("quarantined_bytes")
    if not mapped.integer("peak"):
        return []
    tiers = sorted(device.mapping("pages").items("tiers"), key=lambda tier: -tier.integer("mapped_bytes") - tier.integer("unmapped_bytes"))
    lines = [f"  pages          {size(mapped.integer('current')):>12}   mapped; {size(counters.integer('moved_bytes'))} moved in {several(counters.integer('remaps'), 'remap')}; "
             f"{size(quarantined.integer('current'))} of addresses quarantined",
             f"                 {several(counters.integer('vmm_calls'), 'call')} of the driver for them took {duration(counters.integer('vmm_ns'))}"]
    for tier in tiers[:_TIERS_SHOWN]:
        parts = [f"{size(tier.integer(key))} {word}" for key, word in (("empty_bytes", "empty"), ("unmapped_bytes", "not mapped"), ("stranded_bytes", "free beside others"),
                                                                       ("pinned_bytes", "pinned")) if tier.integer(key)]
        lines.append(f"    {size(tier.integer('mapped_bytes') + tier.integer('unmapped_bytes')):>12} in {several(tier.integer('handles'), 'handle')} of {size(tier.integer('handle_bytes'))}"
                     + (f": {', '.join(parts)}" if parts else ""))
    return lines + ([f"    and {several(len(tiers) - _TIERS_SHOWN, 'other size')}"] if len(tiers) > _TIERS_SHOWN else [])


def _calls(counters: Fields) -> list[str]:
    own = counters.mapping("driver_calls").integers()
    made = sum(own.get(symbol, 0) for symbol in _ALLOCATION_CALLS)
    passed = counters.integer("driver_served")
    would = counters.integer("allocations") + counters.integer("frees")
    lines = [f"  driver calls   {count(made + passed)} to allocate and free, where the program would have made {count(would)} "
             f"({several(counters.integer('allocations'), 'allocation')}, {several(counters.integer('frees'), 'free')})"]
    if passed:
        lines.append(f"                 {count(passed)} of them the program's own, in stream order, which the driver served")
    others = sum(own.values()) - made
    if others:
        lines.append(f"                 {several(others, 'other')} of the pool's own (events, queries)")
    odd = [several(counters.integer(name), noun) + text for name, noun, text in (
        ("failed_allocations", "allocation", " failed"), ("native_fallbacks", "time", " served by the driver instead"),
        ("foreign_frees", "free", " of memory that is not the pool's")) if counters.integer(name)]
    return lines + ([f"                 {', '.join(odd)}"] if odd else [])


def _ledger(device: Fields, paint: Paint) -> list[str]:
    ledger, total = device.mapping("ledger"), device.integer("total_bytes")
    parts = [(ledger.integer(key), text, style) for key, text, style in _LEDGER]
    lines = [f"  whole device   {paint.bar([(amount, style) for amount, _, style in parts if style != 'dim'], total, paint.width - 20)}"]
    for amount, text, style in parts:
        if amount:
            share = 100 * amount / total if total else 0
            lines.append(f"    {paint(paint.full, style)} {size(amount):>12} {share:5.1f}%  {text}")
    return lines


def _site_name(site: Fields) -> str:
    frames = site.items("frames")
    if not frames:
        return f"site {site.integer('site')}"
    frame = frames[0]
    return printable(f"{os.path.basename(frame.text('filename'))}:{frame.integer('line')} {frame.text('name')}")


def _sites(device: Fields, paint: Paint) -> list[str]:
    sites = sorted(device.items("sites"), key=lambda site: -site.integer("bytes"))
    rows = [f"    {size(site.integer('bytes')):>12} in {several(site.integer('blocks'), 'block')}  {_site_name(site)}" for site in sites[:_SITES_SHOWN]]
    return [f"  {paint('holds most', 'bold')}"] + rows if rows else []


def _pins(device: Fields) -> list[str]:
    pins = [pin for pin in device.items("pinned_by") if pin.integer("pinned_free_bytes")]
    if not pins or not device.mapping("ledger").integer("free_pinned"):
        return []
    lines = [f"  pinned by      {'blocks that hold whole pages' if pins[0].integer('handles') else 'small blocks that keep free memory apart'}:"]
    for pin in pins[:_PINS_SHOWN]:
        lines.append(f"    {size(pin.integer('pinned_free_bytes')):>12} beside {size(pin.integer('bytes'))} in {several(pin.integer('blocks'), 'block')} "
                     f"at 0x{pin.integer('address'):x}")
    return lines


def _sizes(leak: Fields) -> str:
    """As they were asked for: one, the most frequent of several, or from where to where."""
    smallest, largest, common = (leak.integer(f"{name}_requested_bytes", None) for name in ("smallest", "largest", "common"))
    if smallest is None or largest is None:
        return ""
    if smallest == largest:
        return f"of {size(smallest)}"
    most = f", {count(leak.integer('common_blocks'))} of them of {size(common)}" if common is not None else ""
    return f"of {size(smallest)} to {size(largest)}{most}"


def _leaks(root: Fields, paint: Paint) -> list[str]:
    leaks = sorted(root.items("leaks"), key=lambda leak: -leak.integer("bytes"))
    if not leaks:
        return []
    total = sum(leak.integer("bytes") for leak in leaks)
    title = "live at the end" if root.text("event") == "exit" else "live then"
    lines = ["", f"{paint(title, 'bold')}  {size(total)} in {several(sum(leak.integer('blocks') for leak in leaks), 'block')}"]
    for leak in leaks[:_LEAKS_SHOWN]:
        size_class = leak.integer("size_class_bytes")
        what = ("" if size_class else f"site {leak.integer('site')} ") + (_sizes(leak) or (f"of {size(size_class)} and more" if size_class else ""))
        lines.append(f"    {size(leak.integer('bytes')):>12} in {several(leak.integer('blocks'), 'block')} {what.strip()}, GPU {leak.integer('device')}")
    return lines + ([f"    and {several(len(leaks) - _LEAKS_SHOWN, 'smaller group')}"] if len(leaks) > _LEAKS_SHOWN else [])


def _quality(root: Fields, paint: Paint) -> list[str]:
    quality = root.mapping("data_quality")
    lines = []
    unpooled = quality.texts("unpooled_apis_seen")
    if unpooled:
        lines += _wrap(f"not pooled: {', '.join(map(printable, unpooled))} were called and passed to the driver", "  ", paint)
    if quality.integer("dropped_events"):
        lines.append(f"  {several(quality.integer('dropped_events'), 'event')} of the timeline {'was' if quality.integer('dropped_events') == 1 else 'were'} overwritten (CUPOOL_TIMELINE keeps more)")
    for warning in quality.texts("warnings"):
        lines += _wrap(printable(warning), "  ", paint, hanging="    ")
    return ["", paint("notes", "bold")] + lines if lines else []
