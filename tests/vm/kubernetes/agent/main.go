// A fake of the k3s and RKE2 agents, whose programs are not available here. It is strict where the real ones are
// lenient: it exits on undocumented keys and on values of another type. It really registers the node, with a bootstrap
// token, which k3s also accepts, and with the real kubelet.
//
// Sources: k3s-io/docs, docs/cli/agent.md (commit 1f023c058c5f999a8857644625779e7298d13936: the keys) and
// docs/installation/configuration.md (commit 147c3699b8dcf0bb95daadbc2c4642da097cee97: the files, and how a `+` after a
// key appends).
//
// Differences from the real agents: the kubelet connects directly to the API server and gets its certificate from it,
// instead of from a proxy on the machine. containerd and the network plugins are the machine's, through a symlink at
// the path of the agent's own socket, so the nvidia runtime that it writes into its file, as the real ones do, has no
// effect. There is no kube-proxy.
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	programs = "/usr/lib/testbed/cluster"
	// Both use this socket. Source: k3s-io/k3s, pkg/agent/config/config.go.
	socket   = "/run/k3s/containerd/containerd.sock"
	machines = "/run/containerd/containerd.sock"
	toolkit  = "/usr/bin/nvidia-container-runtime"
)

type kind int

const (
	text kind = iota
	truth
	list
)

// The documented keys of an agent, and their types.
var keys = map[string]kind{
	"debug": truth, "v": text, "vmodule": text, "log": text, "alsologtostderr": truth,
	"token": text, "token-file": text, "server": text, "data-dir": text,
	"node-name": text, "with-node-id": truth, "node-label": list, "node-taint": list,
	"image-credential-provider-bin-dir": text, "image-credential-provider-config": text,
	"selinux": truth, "lb-server-port": text, "protect-kernel-defaults": truth,
	"container-runtime-endpoint": text, "default-runtime": text, "image-service-endpoint": text,
	"pause-image": text, "snapshotter": text, "private-registry": text,
	"disable-default-registry-endpoint": truth, "nonroot-devices": truth,
	"node-ip": list, "bind-address": text, "node-external-ip": list, "node-internal-dns": list,
	"node-external-dns": list, "resolv-conf": text, "flannel-iface": text, "flannel-conf": text,
	"flannel-cni-conf": text, "kubelet-arg": list, "kube-proxy-arg": list, "enable-pprof": truth,
	"rootless": truth, "prefer-bundled-bin": truth, "docker": truth, "vpn-auth": text,
	"vpn-auth-file": text, "disable-apiserver-lb": truth,
}

var (
	bootstrapToken = regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
	withDigest     = regexp.MustCompile(`^K10([0-9a-f]{64})::(.*)$`)
	label          = regexp.MustCompile(`^[^=]+=[^=]*$`)
	taint          = regexp.MustCompile(`^[^=:]+=[^=:]*:(NoSchedule|PreferNoSchedule|NoExecute)$`)
)

func main() {
	name := filepath.Base(os.Args[0])
	if len(os.Args) > 1 && os.Args[1] == "kubectl" {
		kubectl := programs + "/kubectl"
		end(syscall.Exec(kubectl, append([]string{"kubectl"}, os.Args[2:]...), os.Environ()))
	}
	if len(os.Args) != 2 || os.Args[1] != "agent" {
		end(fmt.Errorf("a fake of the test bed, which supports only `%s agent` and `%s kubectl`", name, name))
	}
	end(agent(name))
}

func end(err error) {
	fmt.Fprintf(os.Stderr, "time=%q level=fatal msg=%q\n", time.Now().UTC().Format(time.RFC3339), err.Error())
	os.Exit(1)
}

func agent(name string) error {
	config, err := read("/etc/rancher/" + name)
	if err != nil {
		return err
	}
	server, token := one(config, "server"), one(config, "token")
	if !strings.HasPrefix(server, "https://") {
		return fmt.Errorf("--server must be an https:// URL, not %q", server)
	}
	if file := one(config, "token-file"); file != "" {
		if token != "" {
			return errors.New("--token and --token-file are mutually exclusive")
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		token = strings.TrimSpace(string(content))
	}
	if token == "" {
		return errors.New("--token is required")
	}
	for _, one := range config["node-label"] {
		if !label.MatchString(one) {
			return fmt.Errorf("invalid label %q", one)
		}
	}
	for _, one := range config["node-taint"] {
		if !taint.MatchString(one) {
			return fmt.Errorf("invalid taint %q", one)
		}
	}
	data := one(config, "data-dir")
	if data == "" {
		data = "/var/lib/rancher/" + name
	}
	arguments, err := prepare(data+"/agent", server, token)
	if err != nil {
		return err
	}
	if node := one(config, "node-name"); node != "" {
		arguments = append(arguments, "--hostname-override="+node)
	}
	if labels := config["node-label"]; len(labels) > 0 {
		arguments = append(arguments, "--node-labels="+strings.Join(labels, ","))
	}
	if taints := config["node-taint"]; len(taints) > 0 {
		arguments = append(arguments, "--register-with-taints="+strings.Join(taints, ","))
	}
	for _, more := range config["kubelet-arg"] {
		arguments = append(arguments, "--"+more)
	}
	return syscall.Exec(programs+"/kubelet", append([]string{"kubelet"}, arguments...), os.Environ())
}

// Reads the merged configuration. A single value becomes a list with one element.
func read(directory string) (map[string][]string, error) {
	parts, err := filepath.Glob(directory + "/config.yaml.d/*.yaml")
	if err != nil {
		return nil, err
	}
	sort.Strings(parts)
	merged := map[string][]string{}
	for _, path := range append([]string{directory + "/config.yaml"}, parts...) {
		content, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		values := map[string]any{}
		if err := yaml.UnmarshalStrict(content, &values); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for key, value := range values {
			name := strings.TrimSuffix(key, "+")
			of, known := keys[name]
			if !known {
				return nil, fmt.Errorf("%s: flag provided but not defined: -%s", path, name)
			}
			found, err := typed(of, value)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", path, key, err)
			}
			if name != key {
				if of != list {
					return nil, fmt.Errorf("%s: %s: this fake appends only to lists", path, key)
				}
				found = append(merged[name], found...)
			}
			merged[name] = found
		}
	}
	return merged, nil
}

func typed(of kind, value any) ([]string, error) {
	switch value := value.(type) {
	case string:
		if of != truth {
			return []string{value}, nil
		}
	case float64:
		if of == text {
			return []string{fmt.Sprint(value)}, nil
		}
	case bool:
		if of == truth {
			return []string{fmt.Sprint(value)}, nil
		}
	case []any:
		if of != list {
			break
		}
		all := []string{}
		for _, one := range value {
			text, is := one.(string)
			if !is {
				return nil, fmt.Errorf("%v is not a string", one)
			}
			all = append(all, text)
		}
		return all, nil
	}
	return nil, fmt.Errorf("%v has the wrong type", value)
}

func one(config map[string][]string, key string) string {
	if values := config[key]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// Queries the cluster, and writes the files that the kubelet needs; returns its arguments.
func prepare(directory, server, token string) ([]string, error) {
	refused := func(why string) error {
		return fmt.Errorf("Failed to validate connection to cluster at %s: %s", server, why)
	}
	info, err := configMap(nil, "", server, "kube-public", "cluster-info", "kubeconfig")
	if err != nil {
		return nil, refused(err.Error())
	}
	var description struct {
		Clusters []struct {
			Cluster struct {
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if err := yaml.Unmarshal([]byte(info), &description); err != nil || len(description.Clusters) != 1 {
		return nil, refused("the ConfigMap cluster-info contains no CA certificate")
	}
	authority := description.Clusters[0].Cluster.Authority
	if parts := withDigest.FindStringSubmatch(token); parts != nil {
		digest := sha256.Sum256(authority)
		if hex.EncodeToString(digest[:]) != parts[1] {
			return nil, refused("token CA hash does not match the Cluster CA certificate hash")
		}
		token = parts[2]
	}
	if !bootstrapToken.MatchString(token) {
		return nil, refused("this fake supports only bootstrap tokens")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, refused("the ConfigMap cluster-info contains an invalid CA certificate")
	}
	kubelet, err := configMap(pool, token, server, "kube-system", "kubelet-config", "kubelet")
	if err != nil {
		return nil, refused(err.Error())
	}
	settings := map[string]any{}
	if err := yaml.Unmarshal([]byte(kubelet), &settings); err != nil {
		return nil, err
	}
	certificate := directory + "/server-ca.crt"
	settings["authentication"] = map[string]any{"x509": map[string]any{"clientCAFile": certificate}}
	delete(settings, "staticPodPath")
	configuration, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	bootstrap := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}]\n"+
		"users: [{name: u, user: {token: %q}}]\n", server, certificate, token)
	// Source: k3s-io/k3s, pkg/agent/containerd/runtimes.go and pkg/agent/templates/templates.go.
	containers := "version = 3\n"
	if _, err := os.Stat(toolkit); err == nil {
		containers += fmt.Sprintf("\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia'.options]\n"+
			"  BinaryName = %q\n", toolkit)
	}
	if err := link(); err != nil {
		return nil, err
	}
	for path, content := range map[string]string{
		"server-ca.crt":              string(authority),
		"bootstrap.kubeconfig":       bootstrap,
		"etc/kubelet.conf":           string(configuration),
		"etc/containerd/config.toml": containers,
	} {
		path = filepath.Join(directory, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	return []string{
		"--bootstrap-kubeconfig=" + directory + "/bootstrap.kubeconfig",
		"--kubeconfig=" + directory + "/kubelet.kubeconfig",
		"--cert-dir=" + directory + "/pki",
		"--config=" + directory + "/etc/kubelet.conf",
		"--container-runtime-endpoint=unix://" + socket,
	}, nil
}

// The machine's containerd listens at the agent's own socket.
func link() error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(machines, socket)
}

// A value of a ConfigMap of the cluster. Without a CA pool the server is not verified.
func configMap(pool *x509.CertPool, token, server, namespace, name, key string) (string, error) {
	verify := &tls.Config{RootCAs: pool, InsecureSkipVerify: pool == nil}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: verify}}
	address := fmt.Sprintf("%s/api/v1/namespaces/%s/configmaps/%s", server, namespace, name)
	request, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusUnauthorized {
		return "", errors.New("not authorized")
	}
	if response.StatusCode != http.StatusOK {
		return "", errors.New(response.Status)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	var result struct {
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(body, &result); err != nil {
		return "", err
	}
	return result.Data[key], nil
}
