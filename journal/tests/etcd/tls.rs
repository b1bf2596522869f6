//! The store in etcd over TLS (S-12), against a real etcd that asks its clients for certificates.

use std::fs;

use elastic_journal::etcd::{Candidate, EtcdAddress, EtcdTls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use super::server::{Etcd, within};
use super::{LONG, card, clock, won};

struct Certified {
    certificate: String,
    key: String,
}

/// An authority, and a certificate of it for both uses.
fn certified() -> (String, Certified) {
    let mut of_authority = CertificateParams::new(Vec::new()).expect("no names");
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(of_authority, KeyPair::generate().expect("a key"))
        .expect("an authority");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &authority).expect("signed").pem();
    (authority.pem(), Certified { certificate, key: key.serialize_pem() })
}

#[test]
fn s_12_etcd_is_called_over_tls_with_the_driver_s_certificate() {
    let (authority, own) = certified();
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in
        [("ca.pem", &authority), ("server.pem", &own.certificate), ("server.key", &own.key)]
    {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let Some(etcd) = Etcd::start_tls(folder.path()) else { return };
    let at = |tls: EtcdTls| EtcdAddress { tls: Some(tls), ..etcd.address() };
    let client = (own.certificate.as_bytes(), own.key.as_bytes());
    let tls = EtcdTls::from_pem(authority.as_bytes(), Some(client)).expect("good ones");
    let mut candidate = Candidate::new(at(tls), card("a"), LONG, false);
    // etcd's port is open before its first election is over.
    let campaign = within(LONG, "etcd answers", || candidate.campaign(&clock).ok());
    won(campaign).finish(b"the end".to_vec()).expect("stored");

    let (foreign, _) = certified();
    let nameless = EtcdTls::from_pem(authority.as_bytes(), None).expect("a good one");
    let wrong = EtcdTls::from_pem(foreign.as_bytes(), Some(client)).expect("a good one");
    for (address, reason) in
        // The end of a TLS 1.3 handshake may overtake its reason.
        [(at(nameless), ""), (at(wrong), "certificate"), (etcd.address(), "")]
    {
        let error = Candidate::new(address, card("b"), LONG, false).campaign(&clock);
        let error = error.expect_err("refused");
        let text = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(text.to_lowercase().contains(reason), "{text}");
    }
}

#[test]
fn s_12_certificates_that_cannot_be_used_are_refused_with_the_reason() {
    let (authority, own) = certified();
    let (_, other) = certified();
    let refused = |authority: &str, client: Option<(&str, &str)>| {
        let client = client.map(|(chain, key)| (chain.as_bytes(), key.as_bytes()));
        EtcdTls::from_pem(authority.as_bytes(), client).expect_err("refused").to_string()
    };
    assert!(refused("", None).contains("the authority has no certificate"));
    assert!(refused(&authority, Some(("x", &own.key))).contains("no certificate"));
    assert!(refused(&authority, Some((&own.certificate, "x"))).contains("no private key"));
    let mismatch = refused(&authority, Some((&own.certificate, &other.key)));
    assert!(mismatch.contains("cannot be used"), "{mismatch}");
}
