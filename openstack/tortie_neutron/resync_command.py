"""The command `calico-resync`: compares etcd with Neutron's database once and prints a report."""
import argparse
import json
import sys

try:
    # Before Neutron is imported, as its own programs do.
    from oslo_service import backend
    backend.init_backend(backend.BackendType.THREADING)
except ImportError:
    # Older versions have only one backend.
    pass

from neutron.common import config as neutron_config
# All models: relations between them exist only if both sides are imported.
from neutron.db.migration.models import head  # noqa: F401
from neutron import manager
from oslo_config import cfg
from oslo_log import log
from sqlalchemy import orm

from tortie_neutron import config
from tortie_neutron.link import DaemonLink, DaemonUnavailable
from tortie_neutron.resync import run_resync, Scope

LOG = log.getLogger(__name__)
DEFAULT_CONFIG = '/etc/neutron/neutron.conf'
FAILED = 1


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(prog='calico-resync', description=__doc__)
    parser.add_argument('--config-file', action='append', metavar='FILE', help='default: %s' % DEFAULT_CONFIG)
    for name, text in (('network', 'its subnets and ports'), ('subnet', 'it and its ports'), ('port', 'only it'),
                       ('security-group', 'only its policy')):
        parser.add_argument('--' + name, action='append', default=[], metavar='ID', help='compare %s' % text)
    parser.add_argument('--include-sgs-for-ports', action='store_true', help='also the security groups of these ports')
    parser.add_argument('--force', action='store_true', help='delete even if most entries would be deleted')
    parser.add_argument('-o', '--output', metavar='FILE', help='write the report to a file')
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    files = [word for name in options.config_file or [DEFAULT_CONFIG] for word in ('--config-file', name)]
    neutron_config.register_common_config_options()
    neutron_config.init(files)
    neutron_config.setup_logging()
    neutron_config.set_config_defaults()
    config.register_options()
    # Loads the plugin, whose methods read the database.
    manager.init()
    orm.configure_mappers()
    link = DaemonLink(cfg.CONF.tortie.socket, cfg.CONF.tortie.timeout)
    scope = Scope(options.network, options.subnet, options.port, options.security_group, options.include_sgs_for_ports)
    try:
        report = run_resync(link, scope, options.force)
    except DaemonUnavailable as error:
        report = {'scope': scope.describe(), 'ok': False, 'error': str(error)}
    except Exception as error:
        LOG.exception('resync failed')
        report = {'scope': scope.describe(), 'ok': False, 'error': '%s: %s' % (type(error).__name__, error)}
    text = json.dumps(report, indent=2)
    if options.output:
        with open(options.output, 'w') as file:
            file.write(text + '\n')
    else:
        print(text)
    return 0 if report['ok'] else FAILED


if __name__ == '__main__':
    sys.exit(main())
