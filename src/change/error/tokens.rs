//! Why the token that joins a cluster is not to be had.

use crate::{error::Report, exit::Exit, model::token::TokenSource};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFault {
    /// The instance has no identity that could ask.
    NoIdentity,
    /// The identity may not read the secret.
    Denied,
    /// There is no such secret.
    NotFound,
    /// What is there is no token.
    Form,
    /// Nobody answers, or only that it cannot serve now.
    Unreachable,
    /// It is refused for another reason.
    Refused,
}

/// The token is not to be had from its place.
#[derive(Debug, thiserror::Error)]
#[error("get the token from `{place}`: {why}")]
pub struct TokenError {
    /// The place, as settings name it.
    pub place: TokenSource,
    /// The class of the failure.
    pub fault: TokenFault,
    /// What happened, without the secret.
    pub why: String,
}

impl TokenError {
    pub(in crate::change) fn new(
        place: &TokenSource,
        fault: TokenFault,
        why: impl Into<String>,
    ) -> Self {
        Self {
            place: place.clone(),
            fault,
            why: why.into(),
        }
    }
}

impl Report for TokenError {
    fn exit(&self) -> Exit {
        Exit::StepFailed
    }

    fn reason(&self) -> &'static str {
        match self.fault {
            TokenFault::NoIdentity => "join-token-no-identity",
            TokenFault::Denied => "join-token-denied",
            TokenFault::NotFound => "join-token-not-found",
            TokenFault::Form => "join-token-form",
            TokenFault::Unreachable => "join-token-unreachable",
            TokenFault::Refused => "join-token-refused",
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match (self.fault, &self.place) {
            (TokenFault::NoIdentity, TokenSource::Aws { .. }) => {
                "give the instance an instance profile with a role"
            }
            (TokenFault::NoIdentity, TokenSource::Gcp { .. }) => {
                "give the instance a service account with the scope `cloud-platform`"
            }
            (TokenFault::NoIdentity, _) => "give the machine one managed identity",
            (TokenFault::Denied, TokenSource::Aws { .. }) => {
                "let the instance's role do `secretsmanager:GetSecretValue` with this secret, and `kms:Decrypt` with its \
                 key if that is your own"
            }
            (TokenFault::Denied, TokenSource::Gcp { .. }) => {
                "give the instance's service account the role `roles/secretmanager.secretAccessor` for this secret, and \
                 the instance the scope `cloud-platform`"
            }
            (TokenFault::Denied, _) => {
                "give the machine's identity the role `Key Vault Secrets User` in this vault, and see whether the \
                 vault's firewall lets the machine in"
            }
            (TokenFault::NotFound, TokenSource::Credential(_)) => {
                "see `systemd-creds list --system`; `/etc/credstore` is a place that lasts"
            }
            (TokenFault::NotFound, _) => "correct `cluster.token-source`, or make the secret",
            (TokenFault::Form, _) => {
                "store the token alone, as text, as a new version of the secret"
            }
            (TokenFault::Unreachable, _) => {
                "see that routes, firewalls and `packages.proxy` let this machine reach it, then run the command again"
            }
            (TokenFault::Refused, TokenSource::Aws { .. }) => {
                "see what the cloud's log of requests says; AWS refuses signatures of a machine whose clock is wrong"
            }
            (TokenFault::Refused, _) => "see what the cloud's log of requests says",
        };
        Some(text.to_owned())
    }

    fn passes(&self) -> bool {
        self.fault == TokenFault::Unreachable
    }
}
