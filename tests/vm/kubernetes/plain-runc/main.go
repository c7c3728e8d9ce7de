// runc without cgroups and OOM scores: a container machine of the test harness has no separate cgroups, and the
// kubelet requests some for every pod. It removes them from the bundle, then executes the real runc.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const real = "/usr/sbin/runc"

func plain(bundle string) error {
	path := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	if linux, ok := config["linux"].(map[string]any); ok {
		delete(linux, "cgroupsPath")
		// Device access needs no controller.
		if resources, ok := linux["resources"].(map[string]any); ok {
			linux["resources"] = map[string]any{"devices": resources["devices"]}
		}
	}
	// The kernel rejects a value below the one that the machine was started with.
	if process, ok := config["process"].(map[string]any); ok {
		delete(process, "oomScoreAdj")
	}
	text, err = json.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func main() {
	arguments := []string{"runc"}
	bundle, makes := "", false
	for at, word := range os.Args {
		switch {
		case at == 0 || word == "--systemd-cgroup":
			continue
		case word == "create" || word == "run":
			makes = true
		case word == "--bundle" && at+1 < len(os.Args):
			bundle = os.Args[at+1]
		case strings.HasPrefix(word, "--bundle="):
			bundle = strings.TrimPrefix(word, "--bundle=")
		}
		arguments = append(arguments, word)
	}
	if makes && bundle != "" {
		if err := plain(bundle); err != nil {
			fmt.Fprintln(os.Stderr, "plain-runc:", err)
			os.Exit(1)
		}
	}
	err := syscall.Exec(real, arguments, os.Environ())
	fmt.Fprintln(os.Stderr, "plain-runc:", err)
	os.Exit(1)
}
