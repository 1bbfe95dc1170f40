"""`allotment.jax.install`: it sets what JAX needs in time, or names the command to use."""

import pytest

from helpers.preloaded import output_of, run

SERVE = ("--depth", "serve")


def test_without_the_library_the_command_is_named():
    import allotment.jax

    with pytest.raises(allotment.RequestError) as caught:
        allotment.jax.install()
    assert "python -m allotment.preload --depth serve script.py" in str(caught.value)
    assert not allotment.jax.is_installed()


def test_a_process_that_only_counts_gets_the_same_error(driver, tmp_path):
    program = """
    import allotment.jax
    try:
        allotment.jax.install()
    except allotment.RequestError as error:
        print("--depth serve" in str(error))
    """
    assert output_of(driver, tmp_path, program) == ["True"]


def test_it_sets_what_jax_reads_when_it_first_uses_a_device(driver, tmp_path):
    program = """
    import allotment.jax
    for _ in range(2):
        allotment.jax.install()
    print(allotment.jax.is_installed())
    print(os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"], os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"])
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["True", "cuda_async false"]


def test_the_option_does_it_before_the_program(driver, tmp_path):
    program = """
    print(os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"], sys.argv[1:])
    """
    assert output_of(driver, tmp_path, program, *SERVE, "--jax") == ["cuda_async []"]


@pytest.mark.parametrize("used", [True, False])
def test_after_jax_has_used_a_device_it_is_too_late_and_after_its_import_not(driver, tmp_path, used):
    program = f"""
    from types import SimpleNamespace
    sys.modules["jax._src.xla_bridge"] = SimpleNamespace(backends_are_initialized=lambda: {used})
    import allotment.jax
    try:
        allotment.jax.install()
        print("installed")
    except allotment.RequestError as error:
        print("--jax script.py" in str(error))
    """
    assert output_of(driver, tmp_path, program, *SERVE) == ["True" if used else "installed"]


def test_the_option_without_the_depth_is_reported_in_a_line_and_the_program_runs(driver, tmp_path):
    (tmp_path / "program.py").write_text("print('runs')\n")
    done = run(driver, "-m", "allotment.preload", "--jax", tmp_path / "program.py")
    assert done.stdout == "runs\n"
    assert len(done.stderr.splitlines()) == 1 and "JAX keeps its own allocator" in done.stderr


CALLER = """
#include <dlfcn.h>
#include <stdint.h>
#include <stddef.h>
int take(uint64_t* address, size_t size) {
    int (*function)(uint64_t*, size_t) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
    return function(address, size);
}
"""


@pytest.mark.parametrize(
    ("name", "tenant"), [("xla_cuda_plugin.so", "jax"), ("libcudnn_ops.so.9", "cudnn"), ("libnccl.so.2", None)]
)
def test_libraries_are_tenants_and_those_that_share_blocks_are_left_to_the_driver(driver, tmp_path, name, tenant):
    from helpers.c_library import compiled

    (tmp_path / "caller.c").write_text(CALLER)
    library = compiled(tmp_path / name, tmp_path / "caller.c", "-ldl")
    program = f"""
    kept = allocate(3 * MIB, "take", library=ctypes.CDLL({str(library)!r}))
    tenants = allotment.current("cuda:0").tenants()
    print({{who: own["allocated_bytes"] for who, own in tenants.items()}}, held().get("nccl", 0))
    """
    expected = f"{{'{tenant}': {3 << 20}}} 0" if tenant else f"{{}} {4 << 20}"
    assert output_of(driver, tmp_path, program, *SERVE) == [expected]
