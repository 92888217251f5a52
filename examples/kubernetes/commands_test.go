// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// programs are what the image has, by name: the paths of the programs, and a
// flag after which they end with 0 if they know all flags before it.
type programs map[string]struct{ path, end string }

func buildPrograms(t *testing.T) programs {
	t.Helper()
	exporter := filepath.Join(t.TempDir(), "verbena-exporter")
	verbena := process.CmdPath(t, "verbena")
	out, err := exec.Command("go", "build", "-C", "../../prometheus", "-o", exporter, "./cmd/verbena-exporter").CombinedOutput()
	require.NoError(t, err, string(out))
	return programs{"verbena": {verbena, "-h"}, "verbena-exporter": {exporter, "--version"}}
}

// problem returns what is wrong with the image and the command of a container,
// or "".
func (all programs) problem(container corev1.Container) string {
	if name, _, _ := strings.Cut(path.Base(container.Image), ":"); name != "verbena" {
		return fmt.Sprintf("there is no image %s", container.Image)
	}
	command := slices.Concat(container.Command, container.Args)
	program, known := all[command[0]]
	if !known {
		return fmt.Sprintf("there is no program %s", command[0])
	}
	out, err := exec.Command(program.path, append(command[1:], program.end)...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
	return ""
}

// The programs take the commands of all pods, and the image has these programs.
func TestCommandsAreThere(t *testing.T) {
	all := buildPrograms(t)
	c, err := readFiles(t).build()
	require.NoError(t, err)
	checked := 0
	for _, p := range c.pods {
		for _, container := range p.spec.Containers {
			require.Empty(t, all.problem(container), p.name)
			checked++
		}
	}
	require.Equal(t, 11, checked)
	for _, w := range []wrong{
		{"exporter/exporter.yaml", "--soft", "--user", "unknown flag: --user"},
		{"exporter/exporter.yaml", `"--soft=false"`, `"soft"`, "unexpected argument"},
		{"exporter/exporter.yaml", `["verbena-exporter"`, `["exporter"`, "there is no program exporter"},
		{"exporter/kustomization.yaml", "newName: registry.example/verbena", "newName: registry.example/exporter", "there is no image registry.example/exporter:v0.1.0"},
		{"dra/dranet.yaml", `"doctor"`, `"docter"`, "unknown command"},
		{"dra/dranet.yaml", `"doctor"`, `"doctor", "--no-such-flag"`, "unknown flag"},
	} {
		c, err := w.in(t).build()
		require.NoError(t, err)
		var found []string
		for _, p := range c.pods {
			found = append(found, all.problem(p.spec.Containers[0]))
		}
		require.Contains(t, strings.Join(found, "\n"), w.found, "%s: %q", w.file, w.new)
	}
}

// The exporter's port in its command is the one that the DaemonSet names.
func TestExporterListensOnItsPort(t *testing.T) {
	c, err := readFiles(t).build()
	require.NoError(t, err)
	container := c.daemonSets[0].Spec.Template.Spec.Containers[0]
	require.Contains(t, container.Command, fmt.Sprintf("--listen=:%d", container.Ports[0].ContainerPort))
}
