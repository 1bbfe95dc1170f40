"""What holds for all tests."""

import pytest

pytest.register_assert_rewrite("contracts", "helpers")
