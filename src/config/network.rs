//! Converts the proxy variables of the environment to settings. They apply to downloads of signing keys and packages,
//! also after a reboot, when the environment is different.

use std::collections::BTreeMap;

use super::values::Proxy;

/// The proxy setting.
pub const PROXY: &str = "packages.proxy";
/// The no-proxy counterpart of [`PROXY`].
pub const NO_PROXY: &str = "packages.no-proxy";

/// In order of precedence: HTTPS first, because signing keys and most repositories use it. Lower and upper case are both
/// common.
const PROXIES: [&str; 6] = [
    "https_proxy",
    "HTTPS_PROXY",
    "http_proxy",
    "HTTP_PROXY",
    "all_proxy",
    "ALL_PROXY",
];
const NO_PROXIES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// A setting from an environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FromEnvironment {
    pub variable: &'static str,
    pub key: &'static str,
    pub value: String,
}

/// Returns the settings from the environment. A proxy type that neither the package manager nor gpu-bootstrap supports
/// (SOCKS) is ignored.
pub fn from_environment(env: &BTreeMap<String, String>) -> Vec<FromEnvironment> {
    let value = |variable: &str| {
        let found = env.get(variable).map(|value| value.trim());
        found.filter(|value| !value.is_empty())
    };
    let proxy = PROXIES.into_iter().find_map(|variable| {
        let value = with_scheme(value(variable)?);
        Proxy::is_one(&value).then_some(FromEnvironment {
            variable,
            key: PROXY,
            value,
        })
    });
    let direct = NO_PROXIES.into_iter().find_map(|variable| {
        Some(FromEnvironment {
            variable,
            key: NO_PROXY,
            value: value(variable)?.to_owned(),
        })
    });
    proxy.into_iter().chain(direct).collect()
}

/// Returns the settings as `KEY=VALUE`.
pub fn assignments(env: &BTreeMap<String, String>) -> Vec<String> {
    from_environment(env)
        .iter()
        .map(|one| format!("{}={}", one.key, one.value))
        .collect()
}

/// Adds `http://` to a proxy without a scheme, such as `proxy:3128`, which curl and wget also accept.
fn with_scheme(address: &str) -> String {
    if address.contains("://") {
        address.to_owned()
    } else {
        format!("http://{address}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(env: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let env = (env.iter())
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let found = from_environment(&env);
        found.into_iter().map(|one| (one.key, one.value)).collect()
    }

    #[test]
    fn first_supported_proxy_is_used() {
        for (env, proxy) in [
            (&[][..], None),
            (&[("http_proxy", "http://a:1")][..], Some("http://a:1")),
            (
                &[("HTTP_PROXY", "http://a:1"), ("https_proxy", "http://b:2/")][..],
                Some("http://b:2/"),
            ),
            (
                &[("https_proxy", ""), ("ALL_PROXY", "a:1")][..],
                Some("http://a:1"),
            ),
            (
                &[("https_proxy", "socks5h://s:1"), ("http_proxy", "a:1")][..],
                Some("http://a:1"),
            ),
        ] {
            let expected: Vec<_> = proxy
                .map(|value| (PROXY, value.to_owned()))
                .into_iter()
                .collect();
            assert_eq!(settings(env), expected, "{env:?}");
        }
    }

    #[test]
    fn no_proxy_variable_becomes_a_setting() {
        assert_eq!(
            settings(&[("NO_PROXY", "localhost, .internal,10.0.0.0/8")]),
            [(NO_PROXY, "localhost, .internal,10.0.0.0/8".to_owned())]
        );
    }
}
