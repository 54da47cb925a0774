"""Neutron driver of Tortie.

Contains only what Neutron requires to be Python: hooks, port binding, database reads, agent reports. The daemon
`tortie openstack` translates objects and writes them to etcd; both talk through a Unix socket.
"""
