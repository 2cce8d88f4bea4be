# Checks that programs on the backend share.


def refused(text, call):
    """Checks that a call fails with an error that has this text."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")
