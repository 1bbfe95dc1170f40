"""The tests that every device must pass, for a device's own test file to inherit.

    from allotment.testing import BackendContract

    class TestMyDevice(BackendContract):
        @pytest.fixture
        def device(self):
            return MyDevice()

docs/writing-a-backend.md lists what the suite requires and what a test file can supply. It needs pytest, without any
plugin, marker or setting.
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
