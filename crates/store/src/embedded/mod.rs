//! The embedded store: the etcd v3 protocol over redb, for one machine.
