"""Serves Neutron's API on a Unix socket: serve.py SOCKET --config-file FILE. Prints a line when it accepts requests."""
import socket
import socketserver
import sys
from wsgiref import simple_server

path = sys.argv[1]
sys.argv = ['neutron-api'] + sys.argv[2:]

from neutron.wsgi.api import application  # noqa: E402


class UnixServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    address_family = socket.AF_UNIX
    daemon_threads = True

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = 'localhost', 80
        self.setup_environ()

    def get_request(self):
        # Handlers expect an IP address.
        return self.socket.accept()[0], ('127.0.0.1', 0)


class QuietHandler(simple_server.WSGIRequestHandler):
    def log_message(self, *args):
        pass


server = UnixServer(path, QuietHandler)
server.set_app(application)
print('ready', flush=True)
server.serve_forever()
