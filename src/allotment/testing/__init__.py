"""What every device must show, as tests that a device's own test file inherits.

    from allotment.testing import BackendContract

    class TestMyDevice(BackendContract):
        @pytest.fixture
        def device(self):
            return MyDevice()

docs/writing-a-backend.md tells what the suite requires and what a test file can supply. It needs pytest, and no plugin,
marker or setting of it.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError(
        f"allotment.testing needs pytest: {error}; install it with: pip install pytest", name="pytest"
    ) from error

pytest.register_assert_rewrite("allotment.testing._contract")  # so that a failing test shows the values

from allotment.testing._contract import BackendContract, requirements  # noqa: E402

__all__ = ["BackendContract", "requirements"]
