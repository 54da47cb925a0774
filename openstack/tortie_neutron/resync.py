"""Resync: sends Neutron's objects to the daemon, which compares them with etcd."""
import time

from tortie_neutron.records import is_workload, NeutronReader
from tortie_neutron.sync import Synchronizer

# A page of new endpoints is 100 writes to etcd.
PHASE_TIMEOUT = 300


class Scope:
    """The objects to compare; without ids all of them."""

    def __init__(self, networks=(), subnets=(), ports=(), security_groups=(), include_groups=False):
        self.networks = set(networks)
        self.subnets = set(subnets)
        self.ports = set(ports)
        self.security_groups = set(security_groups)
        self.include_groups = include_groups
        self.full = not (networks or subnets or ports or security_groups)

    def expand(self, reader):
        """Adds the subnets and ports of networks, the ports of subnets, and the groups of ports if wanted."""
        if self.networks:
            filters = {'network_id': list(self.networks)}
            self.subnets.update(subnet['id'] for subnet in reader.plugin.get_subnets(reader.context, filters=filters))
            self.ports.update(reader.list_port_ids(filters))
        if self.subnets:
            self.ports.update(reader.list_port_ids({'fixed_ips': {'subnet_id': list(self.subnets)}}))
        if self.include_groups and self.ports:
            for port in reader.plugin.get_ports(reader.context, filters={'id': list(self.ports)}):
                self.security_groups.update(port.get('security_groups') or [])

    def describe(self):
        return {'full': self.full, 'subnets': sorted(self.subnets), 'ports': sorted(self.ports),
                'security_groups': sorted(self.security_groups)}


def run_resync(link, scope, force=False):
    """Runs a resync and returns the report of the daemon."""
    started = time.monotonic()
    if not scope.full:
        scope.expand(NeutronReader())
    expand_ms = _milliseconds(started)
    path = '/v1/resync/%s/' % link.post('/v1/resync', {'scope': scope.describe(), 'expand_ms': expand_ms})['id']
    error = None
    try:
        _run_phase(link, path, 'subnets', force, scope, scope.subnets, _list_subnets)
        _run_phase(link, path, 'policy', force, scope, scope.security_groups, _list_groups)
        _run_phase(link, path, 'endpoints', force, scope, scope.ports, _list_ports)
    except Exception as failure:
        error = '%s: %s' % (type(failure).__name__, failure)
        raise
    finally:
        report = link.post(path + 'finish', {'error': error}, PHASE_TIMEOUT)
    return report


def _run_phase(link, path, phase, force, scope, ids, list_objects):
    if not scope.full and not ids:
        return
    link.post(path + 'begin', {'phase': phase}, PHASE_TIMEOUT)
    reader = NeutronReader()
    filters = None if scope.full else {'id': list(ids)}
    neutron_ms = 0
    started = time.monotonic()
    for objects in list_objects(reader, filters):
        neutron_ms += _milliseconds(started)
        link.post(path + 'objects', {'objects': objects}, PHASE_TIMEOUT)
        started = time.monotonic()
    neutron_ms += _milliseconds(started)
    ended = link.post(path + 'end', {'neutron_read_ms': neutron_ms, 'force': force}, PHASE_TIMEOUT)
    # Objects that may have changed between the two reads.
    synchronizer = Synchronizer(link)
    synchronizer.sync_created(ended['created'])
    synchronizer.sync_ports(ended['verify'])


def _list_subnets(reader, filters):
    for page in reader.list_pages(reader.plugin.get_subnets, filters):
        yield [{'subnet': subnet} for subnet in page]


def _list_groups(reader, filters):
    for page in reader.list_pages(reader.plugin.get_security_groups, filters):
        yield [{'security_group': group} for group in page]


def _list_ports(reader, filters):
    for page in reader.list_pages(reader.plugin.get_ports, filters):
        workloads = [port for port in page if is_workload(port)]
        if workloads:
            yield [{'port': record} for record in reader.build_records(workloads)]


def _milliseconds(since):
    return int((time.monotonic() - since) * 1000)
