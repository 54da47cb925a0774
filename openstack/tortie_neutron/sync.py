"""Makes the slots of objects in etcd equal Neutron's database.

A slot is observed first, then the object is read, then written on condition that the slot is as observed. So the order in
which API workers of Neutron send their changes does not matter.
"""
from oslo_log import log

from tortie_neutron.records import NeutronReader

LOG = log.getLogger(__name__)
MAX_ATTEMPTS = 5


def endpoint_slot(host, device_id, port_id):
    return {'kind': 'endpoint', 'host': host, 'device_id': device_id, 'port_id': port_id}


def migration_slot(host, device_id, port_id):
    return dict(endpoint_slot(host, device_id, port_id), kind='migration')


def migrating_to(port):
    return (port.get('binding:profile') or {}).get('migrating_to')


def port_slots(current, original=None):
    """Returns the slots that a port may have, in the order in which they are visited."""
    states = [state for state in (original, current) if state]
    hosts = [(migrating_to(state), state) for state in states]
    migrations = [migration_slot(host, state['device_id'], state['id']) for host, state in hosts if host]
    if original:
        hosts.insert(0, (original.get('binding:host_id'), original))
    hosts.append((current.get('binding:host_id'), current))
    endpoints = [endpoint_slot(host, state['device_id'], state['id']) for host, state in hosts if host]
    slots = []
    for slot in migrations + endpoints:
        # A slot cannot exist without a device.
        if slot['device_id'] and slot not in slots:
            slots.append(slot)
    return slots


class Synchronizer:
    def __init__(self, link):
        self.link = link

    def sync_slots(self, slots, read):
        """Writes slots; `read` returns the object that determines them."""
        for _attempt in range(MAX_ATTEMPTS):
            if not slots:
                return
            seen = self.link.post('/v1/observe', {'slots': slots})['seen']
            writes = [{'slot': slot, 'seen': state} for slot, state in zip(slots, seen)]
            reports = self.link.post('/v1/write', {'writes': writes, 'object': read(NeutronReader())})['reports']
            for slot, report in zip(slots, reports):
                if isinstance(report['outcome'], dict):
                    LOG.warning('%s is not written: %s', slot, report['outcome'].get('invalid'))
                for warning in report.get('warnings', []):
                    LOG.warning('%s: not enforced: %s', slot, warning)
            slots = [slot for slot, report in zip(slots, reports) if report['outcome'] == 'conflict']
        if slots:
            LOG.warning('%s changed too often; a resync repairs them', slots)
            self.link.post('/v1/missed')

    def sync_port(self, current, original=None):
        """Writes a port's security groups, then its endpoints."""
        slots = port_slots(current, original)
        if not slots:
            return
        for group in current.get('security_groups') or []:
            self.sync_group(group)
        self._sync_port_slots(current['id'], slots)

    def _sync_port_slots(self, port_id, slots):
        self.sync_slots(slots, lambda reader: {'port': reader.read_port(port_id)})

    def sync_group(self, group_id):
        slot = {'kind': 'policy', 'security_group_id': group_id}
        self.sync_slots([slot], lambda reader: {'security_group': reader.read_group(group_id)})

    def sync_subnet(self, subnet_id):
        slot = {'kind': 'subnet', 'subnet_id': subnet_id}
        self.sync_slots([slot], lambda reader: {'subnet': reader.read_subnet(subnet_id)})

    def sync_ports(self, port_ids):
        """Writes the endpoints of ports that exist; others are left to the hook that deletes them."""
        for port_id in port_ids:
            record = NeutronReader().read_port(port_id)
            if record:
                self.sync_port(record['port'])

    def sync_created(self, slots):
        """Writes slots that a resync filled. If their objects do not exist any more, nothing else would delete the entries."""
        ports = {}
        for slot in slots:
            if slot['kind'] == 'policy':
                self.sync_group(slot['security_group_id'])
            elif slot['kind'] == 'subnet':
                self.sync_subnet(slot['subnet_id'])
            else:
                ports.setdefault(slot['port_id'], []).append(slot)
        for port_id, its_slots in ports.items():
            self._sync_port_slots(port_id, its_slots)
