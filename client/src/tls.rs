//! TLS to brokers and name servers, on the same ports as plain connections.
//!
//! Source: Apache RocketMQ 4.9.8, `TlsHelper`, `TlsSystemConfig`; servers tell the two apart by the
//! first byte.

use std::{fmt, io, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Whom a client trusts, and how it shows who it is.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use ringmq_client::{Client, Tls};
///
/// let tls = Tls::trusting(&std::fs::read("ca.pem")?)?.server_name("broker.example");
/// let builder = Client::builder("10.0.0.1:9876").tls(tls);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    server_name: Option<String>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

fn invalid(error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error.to_string())
}

fn certificates(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.map_err(invalid)
}

fn roots(pem: &[u8]) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(invalid)?;
    }
    if roots.is_empty() {
        return Err(invalid("no certificate in it"));
    }
    Ok(roots)
}

impl Tls {
    /// Trusts servers whose certificates one of these has signed. `pem` holds one certificate or
    /// more.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if there is no certificate in it, or one is damaged.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// let tls = ringmq_client::Tls::trusting(&std::fs::read("ca.pem")?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn trusting(pem: &[u8]) -> io::Result<Self> {
        let config = builder()?.with_root_certificates(roots(pem)?).with_no_client_auth();
        Ok(Self::from_config(Arc::new(config)))
    }

    /// As [`Tls::trusting`], and shows servers this certificate chain, with this private key.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if one of the three is not what it should be, or key and
    /// certificate do not fit.
    ///
    /// ```no_run
    /// # fn example() -> std::io::Result<()> {
    /// let [ca, chain, key] = ["ca.pem", "client.pem", "client.key"].map(std::fs::read);
    /// let tls = ringmq_client::Tls::with_identity(&ca?, &chain?, &key?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_identity(ca_pem: &[u8], chain_pem: &[u8], key_pem: &[u8]) -> io::Result<Self> {
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(invalid)?;
        let config = builder()?
            .with_root_certificates(roots(ca_pem)?)
            .with_client_auth_cert(certificates(chain_pem)?, key)
            .map_err(invalid)?;
        Ok(Self::from_config(Arc::new(config)))
    }

    /// Trusts every server, as upstream's clients do unless they are told otherwise: the connection
    /// cannot be read by others, but nobody knows who is at its other end.
    ///
    /// # Errors
    ///
    /// None in practice: the cryptography has what it needs.
    ///
    /// ```
    /// # fn example() -> std::io::Result<()> {
    /// let tls = ringmq_client::Tls::trusting_everybody()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn trusting_everybody() -> io::Result<Self> {
        let verifier = Everybody(Arc::new(ring::default_provider()));
        let config = builder()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self::from_config(Arc::new(config)))
    }

    /// Uses a configuration made by hand.
    ///
    /// ```no_run
    /// # fn example(config: rustls::ClientConfig) {
    /// let tls = ringmq_client::Tls::from_config(std::sync::Arc::new(config));
    /// # }
    /// ```
    pub const fn from_config(config: Arc<ClientConfig>) -> Self {
        Self { config, server_name: None }
    }

    /// Which name the certificates of servers must have. Unless set, the host in their address.
    ///
    /// ```
    /// # fn example() -> std::io::Result<()> {
    /// let tls = ringmq_client::Tls::trusting_everybody()?.server_name("broker.example");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn server_name(mut self, name: &str) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Greets the server at the other end of a connection.
    pub(crate) async fn connect(
        &self,
        addr: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
        let name = self.server_name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
        let name = ServerName::try_from(name.to_owned()).map_err(invalid)?;
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }
}

fn builder() -> io::Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>> {
    let provider = Arc::new(ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)
}

/// Takes every certificate, but still checks that the server has the key to it.
#[derive(Debug)]
struct Everybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Everybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
