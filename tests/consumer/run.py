#!/usr/bin/env python3
"""Installs Quire, moves the installation, and uses it in every way there is.

With CMake's find_package, with pkg-config (shared, static, C++), through ctypes,
and as a subdirectory of another project.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parent
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def run(*command, **arguments):
    """Runs a command; its output, or an end with all that it said."""
    command = [str(part) for part in command]
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, check=False, **arguments)
    if result.returncode != 0:
        sys.exit(f"failed ({result.returncode}): {shlex.join(command)}\n"
                 f"{result.stdout}")
    return result.stdout


class Installation:
    """Quire in a folder that is not the one it was installed to."""

    def __init__(self, build, work):
        run("cmake", "--install", build, "--prefix", work / "installed")
        self.prefix = work / "moved here"
        (work / "installed").rename(self.prefix)
        self.libraries = next(self.prefix.rglob("libquire_alloc.so")).parent

    def pkg_config(self, *arguments):
        environment = dict(
            os.environ, PKG_CONFIG_PATH=str(self.libraries / "pkgconfig"))
        return shlex.split(run("pkg-config", *arguments, env=environment))


def use_cmake(options, installation, work):
    run("cmake", "-S", SOURCE, "-B", work, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={installation.prefix}",
        f"-DCMAKE_C_COMPILER={options.cc}",
        f"-DCMAKE_CXX_COMPILER={options.cxx}",
        f"-DCMAKE_BUILD_TYPE={options.build_type}",
        f"-DCMAKE_C_FLAGS={options.flags}",
        f"-DCMAKE_CXX_FLAGS={options.flags}")
    run("cmake", "--build", work)
    for program in ("consumer", "consumer_adapters", "consumer_c_alloc",
                    "consumer_c_alloc_shared"):
        print(run(work / program), end="")


def use_pkg_config(options, installation, work):
    work.mkdir()
    flags = options.flags.split()
    c = [options.cc, "-std=c11", *WARNINGS, *flags, SOURCE / "consumer.c"]
    run(*c, "-o", work / "shared",
        *installation.pkg_config("--cflags", "--libs", "quire-alloc"),
        f"-Wl,-rpath,{installation.libraries}")
    print(run(work / "shared"), end="")
    run(options.cxx, "-std=c++20", *flags, SOURCE / "consumer.cc",
        "-o", work / "cxx",
        *installation.pkg_config("--cflags", "--libs", "quire-paging"))
    print(run(work / "cxx"), end="")
    # Sanitizers need the dynamic linker.
    if not flags:
        run(*c, "-static", "-o", work / "static",
            *installation.pkg_config("--static", "--cflags", "--libs",
                                     "quire-alloc"))
        print(run(work / "static"), end="")
    version = installation.pkg_config("--modversion", "quire-alloc")
    for module in ("quire-alloc-cxx", "quire-loader", "quire-model"):
        if installation.pkg_config("--modversion", module) != version:
            sys.exit(f"{module} is not of version {version}")
        installation.pkg_config("--cflags", "--libs", "--static", module)


def check_exports(installation):
    """The shared library has the functions of the headers and no other symbol."""
    symbols = run("nm", "-D", "--defined-only", "--format=posix",
                  installation.libraries / "libquire_alloc.so")
    exported = {line.split("@")[0] for line in symbols.splitlines()
                if line.split()[1] == "T"}
    others = [line for line in symbols.splitlines()
              if line.split()[1] not in "TA"]
    headers = installation.prefix.rglob("quire/alloc/c_api*.h")
    code = re.sub(r"//.*", "", "".join(map(pathlib.Path.read_text, headers)))
    declared = set(re.findall(r"\b(quire_\w+)\(", code))
    if exported != declared or others:
        sys.exit(f"exported and not declared: {exported - declared}\n"
                 f"declared and not exported: {declared - exported}\n"
                 f"not functions: {others}")


def use_subdirectory(options, work):
    """Configures a project that has Quire in a folder. Not built: that is the
    same sources once more."""
    run("cmake", "-S", SOURCE / "subdirectory", "-B", work, "-G", "Ninja",
        f"-DQUIRE_SOURCE={SOURCE.parents[1]}",
        f"-DCMAKE_C_COMPILER={options.cc}",
        f"-DCMAKE_CXX_COMPILER={options.cxx}")
    targets = run("ninja", "-C", work, "-t", "targets", "all")
    for target in ("alloc_test", "allocator_test", "kv_stress", "install"):
        if re.search(rf"^{target}: ", targets, re.MULTILINE):
            sys.exit(f"a project that contains Quire has the target {target}")
    if not re.search(r"^quire_alloc: ", targets, re.MULTILINE):
        sys.exit("a project that contains Quire has no target quire_alloc")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("--build-type", required=True)
    parser.add_argument("--flags", default="", help="of a sanitizer")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)

    installation = Installation(options.build, options.work)
    check_exports(installation)
    use_cmake(options, installation, options.work / "cmake")
    use_pkg_config(options, installation, options.work / "pkg_config")
    if not options.flags:  # Python itself has no sanitizer
        print(run(sys.executable, SOURCE / "consumer.py",
                  installation.libraries / "libquire_alloc.so"), end="")
    use_subdirectory(options, options.work / "subdirectory")


if __name__ == "__main__":
    main()
