"""Where the time of training goes, under DistributedDataParallel or :class:`ringway.torch.Pipeline`.

import ringway.profile

profiler = ringway.profile.Profiler(model, optimizer)
...                               # training steps, each followed by
profiler.record_step()

profiler.get_stats().exposed      # seconds of a step that wait for communication
profiler.chrome_trace("trace.json")
profiler.report("profile.html")
"""

from ringway.profile._profiler import Profiler
from ringway.profile._stats import CollectiveStats, Percentiles, Stats, Step

__all__ = ["CollectiveStats", "Percentiles", "Profiler", "Stats", "Step"]
