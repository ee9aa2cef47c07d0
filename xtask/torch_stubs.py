"""Make the installed torch importable on a machine without CUDA, and show that it works.

Run by the environment's own Python. The wheel for x86-64 Linux is linked against some 3 GB of CUDA libraries.
Without a GPU none of them is called, but the loader must find each. So for every CUDA library that torch's shared
objects name and that is not installed, this writes one of a few kB that has the symbols they ask for; each of its
functions returns 1, an error code in all of these libraries. torch.cuda.is_available() is then False and
everything on the CPU is the wheel's own code. Needs cc and readelf.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

CUDA = re.compile(r"lib(cu|nv|nccl)")

# Libraries without symbol versions: which undefined symbols are theirs is told by the name.
UNVERSIONED = {
    "libnccl": "p?nccl",
    "libcusparseLt": "cusparseLt",
    "libcufile": "cuFile",
    "libnvshmem_host": "nvshmem",
    "libcuda": "cu[A-EG-Z]",
}

CHECK = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
assert not torch.cuda.is_available()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(1, 4)
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))(x).sum().backward()
sharded = torch.nn.Linear(4, 4)
fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
sharded(x).sum().backward()
dist.destroy_process_group()
print("torch", torch.__version__, "works: import, gloo, DDP, FSDP2", flush=True)
import os; os._exit(0)
"""


def readelf(flag: str, path: Path) -> str:
    command = ["readelf", "-W", flag, str(path)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def needed(path: Path) -> set[str]:
    """Sonames of the libraries that the loader must find for this one."""
    return set(re.findall(r"NEEDED.*\[(.*)\]", readelf("-d", path)))


def undefined(path: Path) -> set[tuple[str, str | None, str | None]]:
    """(symbol, version, soname of the version's owner) of each undefined symbol."""
    owner: dict[str, str] = {}
    soname = ""
    for line in readelf("-V", path).splitlines():
        if found := re.search(r"File: (\S+)", line):
            soname = found[1]
        elif soname and (found := re.search(r"Name: (\S+)", line)):
            owner[found[1]] = soname
    symbols = set()
    for line in readelf("--dyn-syms", path).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[6] == "UND":
            name, _, version = fields[7].partition("@")
            symbols.add((name, version or None, owner.get(version)))
    return symbols


def write_stub(target: Path, symbols: set[tuple[str, str | None]]) -> None:
    """A shared library `target` that defines these (symbol, version) pairs as functions that return 1."""
    source = "\n".join(f"int {name}(void) {{ return 1; }}" for name in sorted({name for name, _ in symbols}))
    versions = sorted({version for _, version in symbols if version})
    script = "\n".join(
        f"{version} {{ {'; '.join(sorted(n for n, v in symbols if v == version))}; }};" for version in versions
    )
    with tempfile.TemporaryDirectory() as scratch:
        c_file, map_file = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        c_file.write_text(source + "\n")
        map_file.write_text(script + "\n")
        command = ["cc", "-w", "-fno-builtin", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{target.name}"]
        if versions:
            command.append(f"-Wl,--version-script={map_file}")
        # Written beside its place and moved there, so that a run cut short leaves no half a library.
        partial = target.with_name(target.name + ".partial")
        subprocess.run([*command, "-o", str(partial), str(c_file)], check=True)
        partial.rename(target)


def write_stubs(site: Path) -> None:
    """Stubs for every CUDA library that torch names and that is not there."""
    lib = site / "torch" / "lib"
    libraries = sorted(lib.glob("*.so*"))
    wanted = set().union(*(needed(path) for path in libraries))
    symbols = set().union(*(undefined(path) for path in libraries))
    have = {path.name for path in [*libraries, *site.glob("nvidia/*/lib/*.so*")]}
    for soname in sorted(name for name in wanted - have if CUDA.match(name)):
        pattern = UNVERSIONED.get(soname.split(".so")[0])
        mine = {
            (name, version)
            for name, version, owner in symbols
            if owner == soname or (owner is None and pattern and re.match(pattern, name))
        }
        write_stub(lib / soname, mine)
        print(f"stub for {soname}: {len(mine)} functions", flush=True)


def main() -> int:
    write_stubs(Path(sysconfig.get_path("purelib")))
    # LD_BIND_NOW makes the loader resolve every function at once, so that one a stub lacks shows here.
    environment = {**os.environ, "LD_BIND_NOW": "1"}
    return subprocess.run([sys.executable, "-c", CHECK], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
