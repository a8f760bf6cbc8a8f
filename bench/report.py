# SPDX-License-Identifier: BSD-3-Clause
#
# From measurements to results.json, results.md, protocols.md and the charts; the targets that the project set itself.
# Called by bench/run_gpu.
import json
import os

import charts
from perftest import compare, size_text

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

TITLES = {
    "put_one": ("put, one at a time", "time", "us", "ucp_put_bw -O 1"),
    "get_one": ("get, one at a time", "time", "us", "ucp_get"),
    "tag_one": ("tag ping-pong, one way", "time", "us", "tag_lat"),
    "am_one": ("active message ping-pong, one way", "time", "us", "ucp_am_lat"),
    "put_stream": ("put stream, 32 in flight", "bandwidth", "GB/s", "ucp_put_bw"),
    "get_stream": ("get stream, 64 in flight", "bandwidth", "GB/s", "ucp_get -O 64"),
    "tag_stream": ("tag stream, 32 in flight", "bandwidth", "GB/s", "tag_bw"),
    "am_stream": ("active message stream, 32 in flight", "bandwidth", "GB/s", "ucp_am_bw"),
    "stream_stream": ("UCP stream, 32 in flight", "bandwidth", "GB/s", "stream_bw -O 32"),
}

# Of a few sizes, in tables alone.
FEW_BYTES = {
    "short_put_one": ("short put from host memory, one at a time", "time", "us", "ucp_put_bw -O 1 -m host,cuda"),
    "short_put_stream": ("short put from host memory, stream", "time", "us", "ucp_put_bw -m host,cuda"),
    "add_stream": ("atomic addition, stream", "time", "us", "ucp_add -m host,cuda"),
    "fadd_one": ("atomic fetch and add, one at a time", "time", "us", "ucp_fadd -O 1 -m host,cuda"),
    "fadd_stream": ("atomic fetch and add, 32 in flight", "time", "us", "ucp_fadd -O 32 -m host,cuda"),
    "cswap_one": ("atomic compare and swap, one at a time", "time", "us", "ucp_cswap -O 1 -m host,cuda"),
}

COLUMN_ORDER = ["cuda_ipc", "nvlink", "copy_engine", "ring"]
SMALL = (8, 64, KIB, 4 * KIB)
# What, test, sizes, "time" (us, at most) or "bandwidth" (GB/s, at least) or "rate" (Mop/s, at least), target, and the same
# target as a ratio to the raw limit that was measured in the same run: a machine may be a quarter quicker or slower than
# another one of its kind. The ratios follow from the absolute targets and the raw figures of two H200 on 2026-11-29.
LIMITS = [
    ("get, one at a time", "get_one", (8, 64, KIB, 4 * KIB, 8 * KIB), "time", 3.8, 1.15),
    ("get, one at a time", "get_one", (64 * KIB,), "time", 7.2, 1.15),
    ("get, one at a time", "get_one", (256 * KIB,), "time", 8.4, 1.15),
    ("get, one at a time", "get_one", (MIB,), "time", 10.9, 1.15),
    ("tag ping-pong", "tag_one", (8,), "time", 4.8, 1.7),
    ("tag ping-pong", "tag_one", (8 * KIB,), "time", 5.5, 1.7),
    ("put stream", "put_stream", SMALL, "rate", 5, 0.2),
    ("get stream", "get_stream", SMALL, "rate", 7, 0.28),
    ("get stream", "get_stream", (64 * KIB,), "bandwidth", 240, 0.67),
    ("put stream", "put_stream", (16 * KIB,), "bandwidth", 75, 0.29),
    ("put stream", "put_stream", (64 * KIB,), "bandwidth", 230, 0.68),
    ("put stream", "put_stream", (256 * KIB,), "bandwidth", 350, 0.95),
    ("put stream", "put_stream", (MIB,), "bandwidth", 355, 0.95),
    ("tag stream", "tag_stream", (64 * KIB,), "bandwidth", 115, 0.33),
    ("tag stream", "tag_stream", (256 * KIB,), "bandwidth", 250, 0.75),
    ("tag stream", "tag_stream", (MIB,), "bandwidth", 345, 0.95),
    ("put", "put_stream", (256 * MIB,), "bandwidth", 389, 0.98),
    ("get", "get_stream", (256 * MIB,), "bandwidth", 389, 0.98),
    ("tag", "tag_stream", (256 * MIB,), "bandwidth", 389, 0.98),
]
# The same of ucp_bench.
BLOCK_LIMITS = [
    ("list of 4 KiB blocks, put", "list_put", 4 * KIB, 180, 0.9),
    ("list of 16 KiB blocks, put", "list_put", 16 * KIB, 270, 0.9),
    # 98 % of what the copy engines of two H200 reach both ways at once.
    ("both ways at once", "both_ways", 256 * MIB, 0.98 * 754, 0.98),
]
BLOCK_TITLES = {
    "both_ways": "both ways at once, put",
    "list_put": "2048 scattered blocks as one list, put",
    "scattered_put": "2048 scattered blocks, single puts",
    "scattered_get": "2048 scattered blocks, single gets",
}
UNITS = {"time": "us", "bandwidth": "GB/s", "rate": "Mop/s"}
# How much worse a size may be than what it is compared with.
NOISE = 1.05


def reading(measurements, test, size, column, what):
    """The median in the unit of UNITS, or None."""
    if what == "time":
        return measurements.value(test, size, column, "time_us")
    if what == "rate":
        value = measurements.value(test, size, column, "time_us")
        return 1 / value if value else None
    value = measurements.value(test, size, column, "time_us")
    return size / value / 1e3 if value else None


def spread(measurements, test, size, column):
    """How far the repeats lie apart, as (slowest - fastest) / median, or None."""
    samples = measurements.samples.get((test, size, column), [])
    if len(samples) < 2:
        return None
    times = sorted(sample.time_us for sample in samples)
    return (times[-1] - times[0]) / times[len(times) // 2]


def digits(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def markdown(header, rows):
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def sizes_text(sizes):
    return size_text(sizes[0]) if len(sizes) == 1 else f"{size_text(sizes[0])} to {size_text(sizes[-1])}"


def worst(values, unit):
    values = [value for value in values if value is not None]
    return (max if unit == "us" else min)(values) if values else None


def keeps(value, limit, unit):
    return value <= limit if unit == "us" else value >= limit


def limit_row(what, sizes, unit, limit, ratio_limit, values, raws):
    """values: {column: [value of each size]}; raws: [raw limit of each size]. The worst of the sizes counts."""
    row = {"what": what, "sizes": sizes, "unit": unit, "limit": limit, "raw": worst(raws, unit)}
    row.update({column: worst(values.get(column, []), unit) for column in ("cuda_ipc", "nvlink")})
    row["pass"] = keeps(row["nvlink"], limit, unit)
    row["ratio"] = worst([value / raw for value, raw in zip(values["nvlink"], raws) if value and raw], unit)
    row["ratio_limit"] = ratio_limit
    row["ratio_pass"] = None if row["ratio"] is None else keeps(row["ratio"], ratio_limit, unit)
    return row


def limit_rows(measurements):
    """[{what, sizes, unit, limit, cuda_ipc, nvlink, raw, ratio, ...}]"""
    rows = []
    for what, test, sizes, kind, limit, ratio_limit in LIMITS:
        sizes = [size for size in sizes if measurements.value(test, size, "nvlink", "time_us")]
        if sizes:
            values = {column: [reading(measurements, test, size, column, kind) for size in sizes]
                      for column in ("cuda_ipc", "nvlink")}
            rows.append(limit_row(what, sizes_text(sizes), UNITS[kind], limit, ratio_limit, values,
                                  [measurements.raw.value(test, size, kind) for size in sizes]))
    for what, test, size, limit, ratio_limit in BLOCK_LIMITS:
        values = {column: [value] for (name, at, column), value in measurements.blocks.items() if (name, at) == (test, size)}
        if test == "both_ways" and not values:
            values = {column: [value / 1e9] for column, value in measurements.both_ways.items()}
        if "nvlink" in values:
            rows.append(limit_row(what, size_text(size), "GB/s", limit, ratio_limit, values,
                                  [measurements.raw.block_value(test, size)]))
    return rows


def compared_rows(measurements, reference):
    """nvlink's time divided by the reference's, every test and size that both have."""
    rows = []
    for test in TITLES:
        for size in measured_sizes(measurements, test):
            other = measurements.value(test, size, reference, "time_us")
            own = measurements.value(test, size, "nvlink", "time_us")
            if other and own:
                rows.append({"test": test, "size": size, "reference": reference, "ratio": own / other,
                             "spread": spread(measurements, test, size, "nvlink"), "pass": own <= other * NOISE})
    return rows


def measured_sizes(measurements, test):
    return sorted({size for name, size, _ in measurements.samples if name == test})


def measured_columns(measurements):
    return sorted({column for _, _, column in measurements.samples}, key=COLUMN_ORDER.index)


def ratio_text(value, raw):
    return f"{value / raw:.2f}" if value and raw else "-"


def test_table(measurements, test):
    title, kind, unit, command = {**TITLES, **FEW_BYTES}[test]
    columns = measured_columns(measurements)
    kinds = [kind] if kind == "time" else [kind, "rate"]
    header, rows = ["size"], [[size_text(size)] for size in measured_sizes(measurements, test)]
    for each in kinds:
        header += [f"{column} {UNITS[each]}" for column in columns]
        if measurements.raw:
            header += [f"raw limit {UNITS[each]}", "nvlink / raw"]
        for row, size in zip(rows, measured_sizes(measurements, test)):
            row += [digits(reading(measurements, test, size, column, each)) for column in columns]
            if measurements.raw:
                raw = measurements.raw.value(test, size, each)
                row += [digits(raw), ratio_text(reading(measurements, test, size, "nvlink", each), raw)]
    return f"### {title[0].upper() + title[1:]} (`{command}`)\n\n" + markdown(header, rows) if rows else ""


def blocks_text(measurements):
    columns = [column for column in COLUMN_ORDER if any(name == column for _, _, name in measurements.blocks)]
    keys = sorted({(test, size) for test, size, _ in measurements.blocks}, key=lambda key: (list(BLOCK_TITLES).index(key[0]), key[1]))
    rows = []
    for test, size in keys:
        row = [BLOCK_TITLES[test], size_text(size)]
        row += [digits(measurements.blocks.get((test, size, column))) for column in columns]
        if measurements.raw:
            raw = measurements.raw.block_value(test, size)
            row += [digits(raw), ratio_text(measurements.blocks.get((test, size, "nvlink")), raw)]
        rows.append(row)
    return markdown(["", "size"] + columns + (["raw limit", "nvlink / raw"] if measurements.raw else []), rows)


def polls_text(raw):
    """How long one operation takes by the number of polls in flight, in a row and after pauses of no fixed length."""
    rows = []
    for way in ("push", "pull"):
        for size in sorted({limit.size for limit in raw.limits if limit.name == "poll1"}):
            for what, ending in (("in a row, median", ""), ("in a row, mean", "_mean"), ("after pauses, mean", "_spaced_mean")):
                found = [raw.find(f"poll{polls}{ending}", way, size, "us") for polls in (1, 2, 3, 4)]
                rows.append([way, size_text(size), what] + [digits(value) for value in found])
    return markdown(["", "size", ""] + ["1 poll us", "2 polls us", "3 polls us", "4 polls us"], rows)


def raw_text(raw):
    parts = ["Measured by `raw_limits` at the start of this run. All lines are in raw_limits.txt; a raw limit in the other "
             "tables is the best of them for the size. For a message it is one copy of its size.\n"]
    parts += [line + "\n" for line in raw.skipped]
    if any(limit.name == "poll1" for limit in raw.limits):
        parts += ["### One operation by a kernel, by polls in flight\n", polls_text(raw)]
    steps = [limit for limit in raw.limits if limit.name.startswith("gpu_")]
    if steps:
        parts += ["### Single steps of a kernel\n", markdown(["", "", "ns"], [
            [limit.name, limit.way, digits(limit.value)] for limit in steps])]
    host = [limit for limit in raw.limits if limit.name == "host_stream" and limit.unit == "GB/s"]
    if host:
        ways = list(dict.fromkeys(limit.way for limit in host))
        parts += ["### Page-locked host memory, a stream of copies (GB/s)\n", markdown(["size"] + ways, [
            [size_text(size)] + [digits(raw.find("host_stream", way, size, "GB/s")) for way in ways]
            for size in sorted({limit.size for limit in host})])]
    return "\n".join(parts)


def verdict(row):
    return "pass" if row["pass"] else "**FAIL**"


def ratio_verdict(row):
    return "-" if row["ratio_pass"] is None else "pass" if row["ratio_pass"] else "**FAIL**"


def limits_text(rows):
    table = []
    for row in rows:
        bound = "at most" if row["unit"] == "us" else "at least"
        table.append([f"{row['what']}, {row['sizes']}", f"{bound} {digits(row['limit'])} {row['unit']}", digits(row["nvlink"]),
                      digits(row["cuda_ipc"]), verdict(row), digits(row["raw"]), f"{bound} {row['ratio_limit']:.2f}",
                      "-" if row["ratio"] is None else f"{row['ratio']:.2f}", ratio_verdict(row)])
    return markdown(["", "target", "nvlink", "cuda_ipc", "", "raw limit of this machine", "target, of raw", "nvlink / raw", ""],
                    table)


def compared_text(rows, reference):
    if not rows:
        return ""
    failed = [row for row in rows if not row["pass"]]
    text = f"{len(rows) - len(failed)} of {len(rows)} rows are not slower than {reference} by more than 5 %.\n"
    if failed:
        table = [[TITLES[row["test"]][0], size_text(row["size"]), f"{row['ratio']:.2f}",
                  "-" if row["spread"] is None else f"{row['spread'] * 100:.0f} %", verdict(row)] for row in failed]
        text += "\n" + markdown(["", "size", "time of nvlink / time of " + reference, "spread of nvlink", ""], table)
    return text


def machine_text(machine):
    lines = [f"- date: {machine['date']}, {machine['seconds']} s" + ("" if machine["complete"] else ", NOT COMPLETE"),
             f"- command: `{machine['command']}`", f"- commit: {machine['commit'] or 'not given'}",
             f"- UCX {machine['ucx']}, CUDA {machine['cuda_version'] or '-'}, {machine['kernel']}",
             f"- {machine['cores']} cores of {machine['cpu'] or 'unknown'}" +
             (f"; the server on {machine['processors'][0]}, the client on {machine['processors'][1]}" if machine.get("processors") else "")]
    lines += [f"- GPU {number}: {gpu}" for number, gpu in enumerate(machine["gpus"])]
    lines += [f"- **{note}**" for note in machine["notes"]]
    if machine["emulated"]:
        lines.insert(0, f"- **EMULATED driver ({os.path.basename(machine['emulated'])}): the figures mean nothing**")
    return "\n".join(lines) + "\n"


def results_text(machine, measurements, limits, compared):
    parts = ["# nvlink beside cuda_ipc\n", machine_text(machine)]
    if limits:
        parts += ["## Targets\n", limits_text(limits)]
    for reference, rows in compared.items():
        if rows:
            parts += [f"## Against {reference}\n", compared_text(rows, reference)]
    if measurements.raw:
        parts += ["## Raw limits of this machine\n", raw_text(measurements.raw)]
    if measurements.both_ways:
        parts += ["## Both ways at once, 256 MiB\n", markdown(["column", "GB/s"], [
            [column, digits(value / 1e9)] for column, value in measurements.both_ways.items()])]
    if measurements.blocks:
        parts += ["## Lists, scattered blocks, both ways (GB/s, `ucp_bench`)\n", blocks_text(measurements)]
    tables = [test_table(measurements, test) for test in (*TITLES, *FEW_BYTES)]
    if any(tables):
        parts += ["## Tables\n", "Medians of the repeats. GB/s: 10^9 bytes.\n"] + [table for table in tables if table]
    if measurements.failures:
        parts += ["## Failed rows\n", "```\n" + "\n".join(failure.text() for failure in measurements.failures) + "\n```\n"]
    return "\n".join(parts)


def last_table(operation, memory, tables):
    """The rows of the table that UCX printed last for this operation on this memory, or None."""
    for table in reversed(tables):
        if compare.TITLES[operation] in table.title and memory in table.title:
            return list(table.rows)
    return None


def range_text(first, last):
    return f"{first}..{'inf' if last > 1 << 60 else last}"


def protocols_text(machine, protocols):
    parts = ["# Which transport carries which sizes\n", "What UCX prints with UCX_PROTO_INFO=y for CUDA memory, with the plugin.\n",
             machine_text(machine)]
    for tls, operations in protocols.items():
        rows = []
        for operation, ranges in operations.items():
            for first, last, description, transports in ranges or [(0, 0, "no table", "")]:
                rows.append([operation, range_text(first, last), description, transports])
        parts += [f"## UCX_TLS={tls}\n", markdown(["", "bytes", "protocol", "transports"], rows)]
    return "\n".join(parts)


def samples_as_json(measurements):
    return [{"test": test, "size": size, "column": column,
             "repeats": [{"time_us": sample.time_us, "typical_us": sample.typical_us, "bandwidth": sample.bandwidth,
                          "rate": sample.rate} for sample in samples]}
            for (test, size, column), samples in measurements.samples.items()]


def write_charts(out, machine, measurements):
    def points(test, kind):
        found = {column: [(size, reading(measurements, test, size, column, kind)) for size in measured_sizes(measurements, test)]
                 for column in measured_columns(measurements)}
        found["raw"] = [(size, measurements.raw.value(test, size, kind)) for size in measured_sizes(measurements, test)]
        return {column: [point for point in line if point[1] is not None] for column, line in found.items()}

    return charts.write(out, machine, points, {test: command for test, (_, _, _, command) in TITLES.items()})


def write(out, machine, measurements, protocols):
    limits = limit_rows(measurements)
    compared = {reference: compared_rows(measurements, reference) for reference in ("cuda_ipc", "copy_engine")}
    text = results_text(machine, measurements, limits, compared)
    with open(os.path.join(out, "results.md"), "w") as file:
        file.write(text)
    with open(os.path.join(out, "results.json"), "w") as file:
        json.dump({"machine": machine, "limits": limits, "compared": compared, "both_ways": measurements.both_ways,
                   "raw": measurements.raw.as_json(),
                   "blocks": [{"test": test, "size": size, "column": column, "gb_per_s": value}
                              for (test, size, column), value in measurements.blocks.items()],
                   "samples": samples_as_json(measurements), "protocols": protocols,
                   "failures": [failure.text() for failure in measurements.failures]}, file, indent=1)
    if protocols:
        with open(os.path.join(out, "protocols.md"), "w") as file:
            file.write(protocols_text(machine, protocols))
    svg = write_charts(out, machine, measurements)
    print(text.split("## Tables")[0].split("## Failed rows")[0])
    names = ["results.md", "results.json"] + (["protocols.md"] if protocols else []) + svg
    print(f"written to {out}: {' '.join(names)}")
