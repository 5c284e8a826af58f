//! Why a command failed: one line and an exit code.

use std::{fmt, io, process::ExitCode};

use ringmq_client::Error;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A server refused, does not know, or was not reached.
    Client(Error),
    /// There is nothing of the kind.
    NotFound(String),
    /// An argument that only a look at the cluster shows to be wrong.
    Argument(String),
    /// The result could not be written.
    Output(io::Error),
}

impl Failure {
    /// The exit code as a number: what `ExitCode` does not let a test read.
    const fn number(&self) -> u8 {
        match self {
            Self::Client(
                Error::Connect { .. } | Error::Disconnected { .. } | Error::TimedOut { .. },
            ) => 3,
            Self::Client(Error::Invalid(_)) | Self::Argument(_) => 2,
            Self::Client(_) | Self::NotFound(_) | Self::Output(_) => 1,
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        self.number().into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error @ Error::Connect { .. }) => {
                write!(f, "{error}; is the server running, and the address right?")
            }
            Self::Client(error) => error.fmt(f),
            Self::NotFound(text) | Self::Argument(text) => f.write_str(text),
            Self::Output(error) => write!(f, "cannot write the result: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringmq_client::Invalid;

    use super::*;

    #[test]
    fn exit_codes_tell_the_kinds_apart() {
        let addr = || "127.0.0.1:9876".to_owned();
        let refused = Error::Refused { addr: addr(), code: 1, remark: String::new() };
        let source = io::ErrorKind::ConnectionRefused.into();
        for (failure, number) in [
            (Failure::Client(refused), 1),
            (Failure::Client(Error::NoRoute { topic: "T".into() }), 1),
            (Failure::NotFound(String::new()), 1),
            (Failure::Client(Invalid::EmptyBody.into()), 2),
            (Failure::Argument(String::new()), 2),
            (Failure::Client(Error::Connect { addr: addr(), source }), 3),
            (Failure::Client(Error::TimedOut { addr: addr(), request: "X" }), 3),
        ] {
            assert_eq!(failure.number(), number, "{failure}");
        }
    }
}
