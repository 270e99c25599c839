//! The key of a gang, and what of TLS is made of it: 256 random bits that only who can read the store has.
//!
//! Both sides make the same two Ed25519 pairs from it, one for the leader and one for who asks it; each proves its own
//! and accepts the other's, as raw public keys (RFC 7250) in TLS 1.3. No certificates, no clock. Invariant: who does
//! not have the key gets no byte of a message. Fails by: an error of the handshake.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use std::io;
use std::sync::Arc;

/// Bytes of a key.
const LEN: usize = 32;
/// A PKCS #8 document of an Ed25519 key (RFC 8410, 7) up to its 32 bytes.
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// See the head of the file.
#[derive(Clone)]
pub struct Key([u8; LEN]);

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Key {
    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new() -> io::Result<Key> {
        let mut bytes = [0; LEN];
        SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("no random bytes"))?;
        Ok(Key(bytes))
    }

    /// Of its digits.
    pub fn read(text: &str) -> Option<Key> {
        let mut bytes = [0; LEN];
        if text.len() != 2 * LEN || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Key(bytes))
    }

    /// As it is.
    pub fn bytes(&self) -> [u8; LEN] {
        self.0
    }

    /// Its digits.
    pub fn text(&self) -> String {
        hex(&self.0)
    }

    /// The pair of one side.
    fn pair(&self, side: &str) -> Result<CertifiedKey, Error> {
        let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), side.as_bytes());
        let pkcs8 = [&PKCS8[..], seed.as_ref()].concat();
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))?;
        let public = key.public_key().ok_or(Error::General("no public key".into()))?;
        let public = CertificateDer::from(public.as_ref().to_vec());
        Ok(CertifiedKey::new(vec![public], key))
    }

    fn sides(&self) -> Result<(CertifiedKey, CertifiedKey), Error> {
        Ok((self.pair("holdfast gang: leader")?, self.pair("holdfast gang: asks the leader")?))
    }

    /// How the leader answers.
    ///
    /// # Errors
    /// Of rustls.
    pub fn server(&self) -> Result<ServerConfig, Error> {
        let (leader, other) = self.sides()?;
        let provider = Arc::new(default_provider());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(Only::new(&other, provider)))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(leader))));
        // Each connection proves the key anew.
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// How it is asked.
    ///
    /// # Errors
    /// Of rustls.
    pub fn client(&self) -> Result<ClientConfig, Error> {
        let (leader, own) = self.sides()?;
        let provider = Arc::new(default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Only::new(&leader, provider)))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(own))));
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(config)
    }
}

/// Accepts one public key.
#[derive(Debug)]
struct Only {
    key: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl Only {
    fn new(of: &CertifiedKey, provider: Arc<CryptoProvider>) -> Only {
        Only { key: of.cert.first().map(|key| key.to_vec()).unwrap_or_default(), provider }
    }

    fn check(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        if key.as_ref() == self.key.as_slice() && !self.key.is_empty() {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check(key)?;
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }
}

/// TLS 1.2 is not offered.
fn too_old() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2".into()))
}

impl ServerCertVerifier for Only {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _above: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Only {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _above: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
