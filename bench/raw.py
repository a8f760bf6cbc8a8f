# SPDX-License-Identifier: BSD-3-Clause
#
# Reads what bench/raw_limits prints and says what the raw limit of a question of the benchmark is. Called by
# bench/run_gpu and bench/report.py.
import re

LINE = re.compile(r"^limit (\S+) (\S+) (\d+) (\S+) (\S+) (\S+) (\S+)$", re.MULTILINE)

# Which of raw_limits' names compete for an answer. Polls that are timed in a row are, those after a pause are not: the
# benchmark does not pause.
ONE = re.compile(r"engine_one(_word)?|poll\d(_apart)?|workers_one_.*")
STREAM = re.compile(r"engine_stream|workers_chunk.*|workers_deep_.*")
LIST = re.compile(r"engine_list|engine_batch|workers_list_.*")
BOTH = re.compile(r"engine_both")


class Limit:
    """One line."""

    def __init__(self, words):
        self.name, self.way = words[0], words[1]
        self.size = int(words[2])
        self.value = float(words[3])
        self.unit = words[4]
        self.low, self.high = float(words[5]), float(words[6])


class RawLimits:
    """All lines of a run; empty where there was none."""

    def __init__(self, output=""):
        self.limits = [Limit(words) for words in LINE.findall(output)]
        self.skipped = [line for line in output.splitlines() if line.startswith("skipped: ")]

    def __bool__(self):
        return bool(self.limits)

    def find(self, name, way, size, unit):
        return next((limit.value for limit in self.limits
                     if (limit.name, limit.way, limit.size, limit.unit) == (name, way, size, unit)), None)

    def best(self, names, ways, size, unit):
        """(value, name) of the best, or None: less is better in us, more in all other units."""
        found = [(limit.value, limit.name) for limit in self.limits
                 if limit.size == size and limit.unit == unit and limit.way in ways and names.fullmatch(limit.name)]
        return (min if unit == "us" else max)(found) if found else None

    def value(self, test, size, kind):
        """What the machine allows in a row of ucx_perftest, in the unit of the kind (time, bandwidth, rate), or None. A
        message is taken for one copy of its size, by whichever side is quicker: what it needs beyond it is not raw."""
        ways = {"put": ("push",), "get": ("pull",)}.get(test.split("_")[0], ("push", "pull"))
        if kind == "time":
            found = self.best(ONE, ways, size, "us")
            return found[0] if found else None
        found = self.best(STREAM, ways, size, "GB/s")
        if not found:
            return None
        return found[0] * 1e3 / size if kind == "rate" else found[0]

    def block_value(self, test, size):
        """The same for a figure of ucp_bench, in GB/s."""
        if test == "both_ways":
            found = self.best(BOTH, ("two_gpus",), size, "GB/s")
        else:
            found = self.best(LIST, ("pull",) if test.endswith("_get") else ("push",), size, "GB/s")
        return found[0] if found else None

    def as_json(self):
        return [vars(limit) for limit in self.limits]
