// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"compress/gzip"
	"context"
	"io"
	"os"
	"strings"
)

// neededModules lists the modules that programs need, with the file that each
// creates in /sys. The modules may be built into the kernel.
var neededModules = []struct{ name, sign string }{
	{"ib_uverbs", "sys/class/infiniband_verbs"},
	{"rdma_ucm", "sys/class/misc/rdma_cm"},
}

func modules(_ context.Context, m *machine) Finding {
	var loaded, missing []string
	for _, module := range neededModules {
		if m.exists(module.sign) {
			loaded = append(loaded, module.name)
		} else {
			missing = append(missing, module.name)
		}
	}
	if len(missing) == 0 {
		return Finding{Status: OK, Found: strings.Join(loaded, " and ") + " are loaded"}
	}
	f := Finding{Status: Fail, Found: strings.Join(missing, " and ") + " not loaded"}
	release := m.read("proc/sys/kernel/osrelease")
	load := "modprobe -a " + strings.Join(missing, " ")
	switch list := "lib/modules/" + release + "/modules.dep"; {
	case !m.exists("proc/modules"):
		f.Found += ", and the kernel " + release + " can load no modules"
		f.Remedy = m.otherKernel()
	case m.hasModules(list, missing):
		f.Commands = []string{load}
	case m.withoutRDMA(release):
		f.Found += ", and the kernel " + release + " was built without RDMA"
		f.Remedy = m.otherKernel()
	case m.exists(list):
		f.Found += ", and the kernel " + release + " has no such modules here"
		f.Remedy = "install the rest of the kernel's modules (on Ubuntu linux-modules-extra-" + release + "), then: " + load
	default: // as in a container
		f.Remedy = m.where("on the host: ", "on the host: ", "on the node: ") + load
	}
	return f
}

// otherKernel returns what to do if modprobe cannot load the modules.
func (m *machine) otherKernel() string {
	return m.where("boot", "have the host boot", "use a node with") + " another kernel, or use a virtual machine with one: " +
		"those of Debian's linux-image-amd64, but not its cloud kernels, and those of Ubuntu with linux-modules-extra have RDMA " +
		"and Soft-RoCE, a software device that needs no card"
}

func (m *machine) hasModules(list string, names []string) bool {
	text := m.read(list)
	for _, name := range names {
		if !strings.Contains(text, "/"+name+".ko") {
			return false
		}
	}
	return true
}

// withoutRDMA reports whether the kernel's configuration can be read and
// includes no RDMA for programs, neither as modules nor built in.
func (m *machine) withoutRDMA(release string) bool {
	config := m.read("boot/config-" + release)
	if config == "" {
		config = m.unzip("proc/config.gz")
	}
	return config != "" && !strings.Contains(config, "\nCONFIG_INFINIBAND_USER_ACCESS=")
}

// unzip returns the content of a compressed file, or "" if it cannot be read.
func (m *machine) unzip(path string) string {
	f, err := os.Open(m.path(path))
	if err != nil {
		return ""
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return ""
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return ""
	}
	return string(text)
}
