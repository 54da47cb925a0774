//! Identities of service accounts as certificates carry them.

/// The service account in a SPIFFE ID: `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`. Any trust domain is accepted:
/// Envoy has verified the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceAccountPrincipal<'p> {
    pub namespace: &'p str,
    pub account: &'p str,
}

impl<'p> ServiceAccountPrincipal<'p> {
    /// Parses a principal. Returns `None` if it does not identify a service account.
    pub fn parse(principal: &'p str) -> Option<ServiceAccountPrincipal<'p>> {
        let mut segments = principal.strip_prefix("spiffe://")?.split('/');
        let trust_domain = segments.next()?;
        let found = [segments.next()?, segments.next()?, segments.next()?, segments.next()?];
        let ["ns", namespace, "sa", account] = found else { return None };
        let is_complete = ![trust_domain, namespace, account].contains(&"") && segments.next().is_none();
        is_complete.then_some(ServiceAccountPrincipal { namespace, account })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_of_service_accounts_are_parsed() {
        for trust_domain in ["cluster.local", "a", "td.example.org:8080"] {
            let text = format!("spiffe://{trust_domain}/ns/shop/sa/web");
            let expected = ServiceAccountPrincipal { namespace: "shop", account: "web" };
            assert_eq!(ServiceAccountPrincipal::parse(&text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_principals_are_unknown() {
        for text in [
            "",
            "web",
            "spiffe://",
            "spiffe://td",
            "spiffe:///ns/shop/sa/web",
            "spiffe://td/ns//sa/web",
            "spiffe://td/ns/shop/sa/",
            "spiffe://td/ns/shop/sa",
            "spiffe://td/ns/shop/sa/web/",
            "spiffe://td/ns/shop/sa/web/x",
            "spiffe://td//ns/shop/sa/web",
            "spiffe://td/x/ns/shop/sa/web",
            "spiffe://td/NS/shop/sa/web",
            "spiffe://td/sa/shop/ns/web",
            "SPIFFE://td/ns/shop/sa/web",
            " spiffe://td/ns/shop/sa/web",
            "https://td/ns/shop/sa/web",
            "CN=web,O=shop",
        ] {
            assert_eq!(ServiceAccountPrincipal::parse(text), None, "{text:?}");
        }
    }
}
