//! Floating addresses: translates connections to a floating address into connections to its workload.
//!
//! Only packets that arrive at the node are translated. Packets that the node itself sends are not, in contrast to
//! Calico: an address in a pod's annotation must never decide where the daemon, kubelet and other programs on the host
//! reach the cluster's servers. As in [`super::nat`], matching and translating are separate chains. A workload that
//! connects to its own floating address would receive its replies directly, without the reverse translation, so its
//! source is translated to that address.

use super::super::rule::{NatEnd, NftAction, NftFamily, NftField, NftMatch, NftRule};
use super::super::table::{ChainHook, HookPoint, NftChain, NftElement, SetType, join};
use super::names;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_plan::FloatingIp;

/// Before the chains that translate services.
const FLOATING_DNAT_PRIORITY: i32 = -110;

/// The chains, sets and rules for floating addresses.
#[derive(Debug, Default)]
pub(crate) struct FloatingChains {
    pub chains: Vec<(String, NftChain)>,
    pub sets: Vec<(String, SetType, BTreeSet<NftElement>)>,
    /// Rules for the beginning of the chain that translates sources.
    pub outgoing: Vec<NftRule>,
}

/// Renders all floating addresses. If several workloads share one, it belongs to the workload whose own address sorts
/// first as text; a workload with several uses the first of them as its source.
pub(crate) fn render<'f>(all: impl Iterator<Item = &'f FloatingIp>) -> FloatingChains {
    let mut there: Vec<FloatingIp> = all.copied().collect();
    let text = |address: IpAddr| address.to_string();
    there.sort_by_key(|floating| (text(floating.external), text(floating.internal)));
    let mut rendered = FloatingChains::default();
    let (mut entering, mut leaving) = (Vec::new(), Vec::new());
    for family in NftFamily::BOTH {
        let of_family = there.iter().filter(|floating| NftFamily::of(floating.external) == family);
        let (mut to, mut back) = (BTreeMap::new(), BTreeMap::new());
        for FloatingIp { external, internal } in of_family {
            let (external, internal) = (bytes(*external), bytes(*internal));
            if let Entry::Vacant(place) = to.entry(external.clone()) {
                back.entry(internal.clone()).or_insert(external);
                place.insert(internal);
            }
        }
        if to.is_empty() {
            continue;
        }
        let keys = |map: &BTreeMap<Vec<u8>, Vec<u8>>| map.keys().cloned().map(NftElement::key).collect();
        let (externals, internals) = (name("external", family), name("internal", family));
        rendered.sets.push((externals.clone(), SetType::Addresses(family), keys(&to)));
        rendered.sets.push((internals.clone(), SetType::Addresses(family), keys(&back)));
        let elements = to.into_iter().map(|(external, internal)| NftElement::translation(external, internal));
        rendered.sets.push((name("to", family), SetType::Translations(family), elements.collect()));
        let elements = back
            .into_iter()
            .map(|(internal, external)| NftElement::translation(join(&[&internal, &internal]), external));
        rendered.sets.push((name("back", family), SetType::PairTranslations(family), elements.collect()));

        let (source, destination) = (NftField::Source(family), NftField::Destination(family));
        let addressed = vec![NftMatch::family(family), NftMatch::lookup([destination], externals)];
        entering.push(NftRule::new(addressed, vec![NftAction::Goto(name("dnat", family))]));
        let itself = vec![
            NftMatch::family(family),
            NftMatch::lookup([source], internals.clone()),
            NftMatch::lookup([destination], internals),
        ];
        leaving.push(NftRule::new(itself, vec![NftAction::Jump(name("snat", family))]));
        let by = |end, fields, map| {
            let translate = NftAction::TranslateBy { end, family, fields, map };
            NftChain { hook: None, rules: vec![NftRule::new(Vec::new(), vec![translate])] }
        };
        rendered
            .chains
            .push((name("dnat", family), by(NatEnd::Destination, vec![destination], name("to", family))));
        rendered.chains.push((
            name("snat", family),
            by(NatEnd::Source, vec![source, destination], name("back", family)),
        ));
    }
    if !entering.is_empty() {
        let hook = ChainHook::nat(HookPoint::Prerouting, FLOATING_DNAT_PRIORITY);
        rendered.chains.push(("floating-in".to_owned(), NftChain { hook: Some(hook), rules: entering }));
    }
    rendered.outgoing = leaving;
    rendered
}

fn name(part: &str, family: NftFamily) -> String {
    names::floating(part, family)
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::table::ElementData;
    use super::*;

    fn floating(external: &str, internal: &str) -> FloatingIp {
        FloatingIp { external: external.parse().unwrap(), internal: internal.parse().unwrap() }
    }

    #[test]
    fn an_address_of_two_is_of_the_first_and_a_workload_with_two_calls_itself_by_the_first() {
        let all = [
            floating("192.0.2.2", "10.0.0.1"),
            floating("192.0.2.1", "10.0.0.1"),
            floating("192.0.2.1", "10.0.0.2"),
        ];
        let rendered = render(all.iter());
        let elements = |name: &str| {
            let (.., elements) = rendered.sets.iter().find(|(set, ..)| set == name).unwrap();
            elements.iter().map(|element| element.data.clone()).collect::<Vec<_>>()
        };
        let value = |address: [u8; 4]| ElementData::Value(address.into());
        assert_eq!(elements("floating-to-4"), [value([10, 0, 0, 1]), value([10, 0, 0, 1])]);
        assert_eq!(elements("floating-back-4"), [value([192, 0, 2, 1])]);
        assert!(
            rendered.sets.iter().all(|(name, ..)| name.ends_with('4')),
            "nothing for a family without any"
        );
        assert!(render([].iter()).chains.is_empty());
    }
}
