"""Requests to the daemon `tortie openstack` on its Unix socket."""
import http.client
import json
import socket


class DaemonUnavailable(Exception):
    """The daemon, or etcd behind it, does not respond."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__('localhost', timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class DaemonLink:
    def __init__(self, path, timeout):
        self.path = path
        self.timeout = timeout

    def get(self, path, timeout=None):
        return self._request('GET', path, None, timeout)

    def post(self, path, body=None, timeout=None):
        # default=str: Neutron's objects contain addresses and times that JSON does not have.
        return self._request('POST', path, json.dumps(body or {}, default=str), timeout)

    def _request(self, verb, path, body, timeout):
        connection = _UnixConnection(self.path, timeout or self.timeout)
        try:
            connection.request(verb, path, body, {'Content-Type': 'application/json'})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnavailable('tortie openstack does not respond on %s: %s; check that it runs and that '
                                    'Neutron may use the socket' % (self.path, error)) from error
        finally:
            connection.close()
        if response.status >= 500:
            raise DaemonUnavailable('tortie openstack: %s' % _read_error(text))
        if response.status >= 400:
            raise ValueError('tortie openstack rejected %s %s: %s' % (verb, path, _read_error(text)))
        return json.loads(text) if text else None


def _read_error(text):
    try:
        return json.loads(text)['error']
    except (ValueError, KeyError, TypeError):
        return text[:500].decode(errors='replace')
