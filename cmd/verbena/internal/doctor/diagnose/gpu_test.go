// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

func TestGPUMemory(t *testing.T) {
	pci := func(vendor, class string) map[string]string {
		return map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": vendor + "\n", "sys/bus/pci/devices/0000:01:00.0/class": class + "\n"}
	}
	linux := func(release string) map[string]string {
		return map[string]string{"proc/sys/kernel/osrelease": release + "\n"}
	}
	cuda := map[string]string{"usr/lib/x86_64-linux-gnu/libcuda.so.1": ""}
	open := map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06"}
	closed := map[string]string{"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03"}
	peermem := map[string]string{"sys/module/nvidia_peermem/refcnt": "0"}
	amdgpu := map[string]string{"sys/module/amdgpu/refcnt": "9"}
	rocm := map[string]string{"opt/rocm-7.0.0/lib/libamdhip64.so.7": ""}
	const guide = "see what docs/guide/gpu.md says each way needs"
	for name, tt := range map[string]struct {
		files   map[string]string
		without bool // the device has no regions of DMA buffers
		want    Finding
	}{
		"both ways": {
			with(cuda, open, peermem, linux("6.8.0-79-generic")), false,
			Finding{Status: OK, Found: "NVIDIA: memory can be registered as a DMA buffer, and by its address (nvidia_peermem)"},
		},
		"DMA buffers":    {with(cuda, open, linux("6.8.0")), false, Finding{Status: OK, Found: "NVIDIA: memory can be registered as a DMA buffer"}},
		"an odd release": {with(cuda, open, linux("next")), false, Finding{Status: OK, Found: "NVIDIA: memory can be registered as a DMA buffer"}},
		"peer memory": {with(cuda, closed, peermem, linux("6.8.0")), false, Finding{
			Status: OK,
			Found: "NVIDIA: memory can be registered by its address (nvidia_peermem), not as a DMA buffer: " +
				"the driver is not of NVIDIA's open kernel modules",
		}},
		"neither": {with(cuda, closed, linux("6.8.0")), false, Finding{
			Status: Warn, Remedy: guide,
			Found: "NVIDIA: the GPU's memory cannot be registered, not as a DMA buffer: the driver is not of NVIDIA's open kernel modules; " +
				"and not by its address: no peer memory module is loaded",
		}},
		"neither, but the module is there": {
			with(cuda, open, linux("5.10.0"), map[string]string{"lib/modules/5.10.0/modules.dep": "kernel/drivers/video/nvidia_peermem.ko: x"}), false,
			Finding{
				Status: Warn, Remedy: guide, Commands: []string{"modprobe nvidia_peermem"},
				Found: "NVIDIA: the GPU's memory cannot be registered, not as a DMA buffer: Linux 5.10.0 is older than 5.12; " +
					"and not by its address: no peer memory module is loaded",
			},
		},
		"a device that cannot": {with(cuda, open, linux("6.8.0")), true, Finding{
			Status: Warn, Remedy: guide,
			Found: "NVIDIA: the GPU's memory cannot be registered, not as a DMA buffer: rxe0 cannot do it; " +
				"and not by its address: no peer memory module is loaded",
		}},
		"a card without a driver": {with(outside, pci("0x10de", "0x030000")), false, Finding{
			Status: Warn, Found: "NVIDIA: the GPU's driver is not loaded: no program can use its memory", Remedy: "install its driver, with the libraries",
		}},
		"a container without the library": {with(inside, open), false, Finding{
			Status: Warn, Found: "NVIDIA: libcuda.so.1 is missing: no program can use the GPU's memory",
			Remedy: "start the container with the GPU: docker run --gpus all",
		}},
		"AMD": {
			with(pci("0x1002", "0x120000"), amdgpu, rocm, linux("6.8.0"), map[string]string{"boot/config-6.8.0": "CONFIG_PCI_P2PDMA=y\n"}), false,
			Finding{Status: OK, Found: "AMD: memory can be registered as a DMA buffer"},
		},
		"AMD, a kernel without": {
			with(amdgpu, rocm, linux("6.1.0"), map[string]string{"boot/config-6.1.0": "CONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\n"}), false,
			Finding{
				Status: Warn, Remedy: guide,
				Found: "AMD: the GPU's memory cannot be registered, not as a DMA buffer: the kernel was built without CONFIG_DMABUF_MOVE_NOTIFY; " +
					"and not by its address: no peer memory module is loaded",
			},
		},
		"AMD, another stack": {
			with(amdgpu, rocm, linux("5.4.0"), map[string]string{"sys/kernel/mm/memory_peers/amdkfd/version": "1"}), false,
			Finding{Status: OK, Found: "AMD: memory can be registered by its address (amdkfd), not as a DMA buffer: Linux 5.4.0 is older than 5.12"},
		},
		"both makers": {with(cuda, open, pci("0x1002", "0x038000"), linux("6.8.0"), outside), false, Finding{
			Status: Warn, Found: "NVIDIA: memory can be registered as a DMA buffer; AMD: the GPU's driver is not loaded: no program can use its memory",
			Remedy: "install its driver, with the libraries",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(t, tt.files)
			m.devices = []ibverbs.DeviceInfo{roce("rxe0", "eth0", link.Active)}
			m.importsDMABuf = func(string) bool { return !tt.without }
			require.True(t, m.hasGPU())
			require.Equal(t, tt.want, gpuMemory(t.Context(), m))
		})
	}
}

// Where there is no GPU, the report says nothing of them.
func TestNoGPU(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing":        {},
		"another's card": {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n"},
		"a sound card":   {"sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n"},
	} {
		m := fake(t, files)
		require.False(t, m.hasGPU(), name)
		report := m.run(t.Context(), []check{{name: "GPU memory", where: (*machine).hasGPU, look: gpuMemory}})
		require.Empty(t, report.Findings, name)
		require.True(t, report.Works, name)
	}
}
