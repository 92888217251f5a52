// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
)

// gpuMaker describes a vendor of GPUs whose memory RDMA devices can access.
type gpuMaker struct {
	name      string
	pciVendor string
	driver    string   // file that the driver creates
	library   string   // library with which programs allocate memory
	container string   // how a container gets the driver and the library
	peers     []string // modules that let the memory be registered by its address
}

var gpuMakers = []gpuMaker{
	{
		name: "NVIDIA", pciVendor: "0x10de", driver: "proc/driver/nvidia/version", library: "libcuda.so.1",
		container: "docker run --gpus all", peers: []string{"nvidia_peermem", "nv_peer_mem"},
	},
	{
		name: "AMD", pciVendor: "0x1002", driver: "sys/module/amdgpu", library: "libamdhip64.so",
		container: "docker run --device /dev/kfd --device /dev/dri",
	},
}

// hasGPU reports whether there is a GPU or a GPU library. If there is neither,
// the check is skipped.
func (m *machine) hasGPU() bool {
	for _, maker := range gpuMakers {
		if m.hasGPUOf(maker) {
			return true
		}
	}
	return false
}

func (m *machine) hasGPUOf(maker gpuMaker) bool {
	return m.exists(maker.driver) || m.pciGPU(maker.pciVendor) || m.library(maker.library)
}

// pciGPU reports whether the machine has a display controller or a processing
// accelerator of the vendor.
func (m *machine) pciGPU(vendor string) bool {
	const devices = "sys/bus/pci/devices"
	for _, name := range m.list(devices) {
		class := m.read(filepath.Join(devices, name, "class"))
		if m.read(filepath.Join(devices, name, "vendor")) == vendor && (strings.HasPrefix(class, "0x03") || strings.HasPrefix(class, "0x12")) {
			return true
		}
	}
	return false
}

// library reports whether the usual directories have a library with the name,
// or with the name and a version.
func (m *machine) library(name string) bool {
	for _, folder := range []string{"lib", "lib64", "usr/lib", "usr/lib64", "usr/lib/*-linux-gnu*", "usr/local/lib", "usr/lib/wsl/lib", "opt/rocm*/lib"} {
		if files, _ := filepath.Glob(m.path(filepath.Join(folder, name+"*"))); len(files) > 0 {
			return true
		}
	}
	return false
}

// gpuMemory checks, for each vendor of GPUs in the machine, whether RDMA
// devices can access GPU memory.
func gpuMemory(_ context.Context, m *machine) Finding {
	f := Finding{Status: OK}
	var found, remedies []string
	for _, maker := range gpuMakers {
		if !m.hasGPUOf(maker) {
			continue
		}
		one := m.memoryOf(maker)
		if one.Status != OK {
			f.Status = one.Status
		}
		found = append(found, maker.name+": "+one.Found)
		if one.Remedy != "" {
			remedies = append(remedies, one.Remedy)
		}
		f.Commands = append(f.Commands, one.Commands...)
	}
	f.Found, f.Remedy = strings.Join(found, "; "), strings.Join(remedies, "; ")
	return f
}

func (m *machine) memoryOf(maker gpuMaker) Finding {
	install := m.where("install its driver, with the libraries", "start the container with the GPU: "+maker.container, "give the pod the GPU, by the maker's device plugin")
	switch {
	case !m.exists(maker.driver):
		return Finding{Status: Warn, Found: "the GPU's driver is not loaded: no program can use its memory", Remedy: install}
	case !m.library(maker.library):
		return Finding{Status: Warn, Found: maker.library + " is missing: no program can use the GPU's memory", Remedy: install}
	}
	peer := m.peerModule(maker)
	why := m.noDMABuf(maker)
	switch {
	case why == "" && peer != "":
		return Finding{Status: OK, Found: "memory can be registered as a DMA buffer, and by its address (" + peer + ")"}
	case why == "":
		return Finding{Status: OK, Found: "memory can be registered as a DMA buffer"}
	case peer != "":
		return Finding{Status: OK, Found: "memory can be registered by its address (" + peer + "), not as a DMA buffer: " + why}
	}
	f := Finding{
		Status: Warn, Found: "the GPU's memory cannot be registered, not as a DMA buffer: " + why + "; and not by its address: no peer memory module is loaded",
		Remedy: "see what docs/guide/gpu.md says each way needs",
	}
	if len(maker.peers) > 0 {
		if module := maker.peers[0]; m.hasModules("lib/modules/"+m.read("proc/sys/kernel/osrelease")+"/modules.dep", []string{module}) {
			f.Commands = []string{"modprobe " + module}
		}
	}
	return f
}

// peerModule returns the loaded module that lets GPU memory be registered by
// its address, or "" if there is none.
func (m *machine) peerModule(maker gpuMaker) string {
	for _, module := range maker.peers {
		if m.exists("sys/module/" + module) {
			return module
		}
	}
	if maker.name == "AMD" && m.exists("sys/kernel/mm/memory_peers/amdkfd") {
		return "amdkfd"
	}
	return ""
}

// noDMABuf returns the reason why GPU memory cannot be registered as a DMA-BUF,
// or "" if no reason is known.
func (m *machine) noDMABuf(maker gpuMaker) string {
	release := m.read("proc/sys/kernel/osrelease")
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil && (major < 5 || major == 5 && minor < 12) {
		return "Linux " + release + " is older than 5.12"
	}
	switch maker.name {
	case "NVIDIA":
		if !strings.Contains(m.read(maker.driver), "Open Kernel Module") {
			return "the driver is not of NVIDIA's open kernel modules"
		}
	case "AMD":
		for _, option := range []string{"CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY"} {
			if strings.Contains(m.read("boot/config-"+release), "# "+option+" is not set") {
				return "the kernel was built without " + option
			}
		}
	}
	var lack []string
	for _, d := range m.devices {
		if m.importsDMABuf(d.Device.Name) {
			return ""
		}
		lack = append(lack, d.Device.Name)
	}
	return strings.Join(lack, " and ") + " cannot do it"
}

// importsDMABuf reports whether a device can register DMA-BUFs. It tries to
// register a descriptor that is not open: if the device supports DMA-BUFs, the
// error is another one than errors.ErrUnsupported.
func importsDMABuf(device string) bool {
	d, err := ibverbs.Open(device)
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	pd, err := d.AllocPD()
	if err != nil {
		return false
	}
	defer func() { _ = pd.Close() }()
	_, err = pd.RegisterDMABuf(ibverbs.DMABuf{FD: math.MaxInt32, Length: 1}, ibverbs.AccessLocalWrite)
	return !errors.Is(err, errors.ErrUnsupported)
}
