"""Another case, with its tensors on an accelerator: PyTorch's, or the one of tests/device, which is a library.

on_device.py DEVICE CASE ARGUMENTS...
"""

import os
import runpy
import sys
import types
from pathlib import Path

import torch

device, case = sys.argv[1:3]
if device.endswith(".so"):
    torch.utils.rename_privateuse1_backend("simulated")
    torch.ops.load_library(device)
    module = types.ModuleType("simulated")
    vars(module).update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        manual_seed_all=lambda _: None,
        _is_in_bad_fork=lambda: False,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        Stream=lambda priority=0: torch.Stream(priority=priority),
        Event=torch.Event,
        stream=lambda stream: stream,
        current_stream=torch.accelerator.current_stream,
    )
    torch._register_device_module("simulated", module)
    device = "simulated"
os.environ["TEST_DEVICE"] = device
script = str(Path(__file__).with_name(f"{case}.py"))
sys.argv = [script, *sys.argv[3:]]
runpy.run_path(script, run_name="__main__")
