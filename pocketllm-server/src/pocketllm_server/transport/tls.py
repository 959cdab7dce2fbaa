"""TLS: a context from the operator's files, checked before anything is loaded."""

from __future__ import annotations

import ssl

from pocketllm.errors import ConfigurationError
from pocketllm_server.config.settings import ServerSettings

_ALPN = ["h2", "http/1.1"]


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """The context of the settings' certificate, TLS 1.2 at least; None without one.

    ``ssl_certfile`` alone may hold the key too.

    Raises:
        ConfigurationError: a file cannot be read, the two do not belong together, or the password is wrong.
    """
    if settings.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION  # HTTP/2 forbids it
    context.set_alpn_protocols(_ALPN)
    # A password that is never asked for on a terminal: a server that waits for one looks like one that hangs.
    password = settings.ssl_keyfile_password or ""
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password)
    except (OSError, ValueError) as error:
        files = settings.ssl_certfile + (f" with {settings.ssl_keyfile}" if settings.ssl_keyfile else "")
        raise ConfigurationError(
            f"The certificate {files} cannot be used: {error}. Give PEM files that belong together with --ssl-certfile "
            "and --ssl-keyfile.",
            param="ssl_certfile",
        ) from None
    return context
