// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/internal/testutil/udmabuf"
)

// doubles has a folder for each maker, with the doubles of its libraries.
var doubles string

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	var err error
	if doubles, err = os.MkdirTemp("", "gpu"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(doubles)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-x", "192.0.2.1:7471 hello", "-listen :7471 hello", "-listen", "-n 0 192.0.2.1:7471", "-n 1073741825 192.0.2.1:7471")
}

// libraries has programs find the doubles of a maker's libraries. The first
// call for the maker builds them.
func libraries(t *testing.T, maker string) {
	t.Helper()
	folder := filepath.Join(doubles, maker)
	t.Setenv("LD_LIBRARY_PATH", folder)
	if err := os.Mkdir(folder, 0o700); !errors.Is(err, fs.ErrExist) {
		require.NoError(t, err)
		build(t, maker, folder)
	}
}

func build(t *testing.T, maker, folder string) {
	t.Helper()
	names := map[string][]string{"NVIDIA": {"libcuda.so.1"}, "AMD": {"libamdhip64.so", "libhsa-runtime64.so.1"}}[maker]
	// HIP and HSA are one library here, of two names.
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-D"+map[string]string{"NVIDIA": "CUDA", "AMD": "ROCM"}[maker],
		"-o", filepath.Join(folder, names[0]), "testdata/gpu.c", "-pthread").CombinedOutput()
	require.NoError(t, err, string(out))
	if maker == "AMD" { // a machine with an NVIDIA GPU has its library
		require.NoError(t, os.WriteFile(filepath.Join(folder, "libcuda.so.1"), nil, 0o644))
	}
	for _, name := range names[1:] {
		require.NoError(t, os.Symlink(names[0], filepath.Join(folder, name)))
	}
}

var makers = map[string]string{"NVIDIA": "an NVIDIA GPU", "AMD": "an AMD GPU"}

// transfers runs a server, and a client for each number of bytes. The memory of
// all must be registered in the way.
func transfers(t *testing.T, gpu, way string, sizes ...string) {
	transfersWith(t, nil, gpu, way, sizes...)
}

// transfersWith is transfers with more flags.
func transfersWith(t *testing.T, flags []string, gpu, way string, sizes ...string) {
	d := testdevice.Require(t)
	server := process.StartMain(t, slices.Concat(flags, []string{"-n", "300000", "-listen", d.IPv4.String() + ":0"})...)
	address := server.Prints(`listening on (\S+)\n`)
	for _, n := range sizes {
		client := process.RunMain(t, slices.Concat(flags, []string{"-n", n, address})...)
		require.Zero(t, client.Wait())
		require.Equal(t, n+" bytes went from the memory of "+gpu+", registered "+way+", and came back\n", client.Stdout())
		require.Empty(t, client.Stderr())
		server.Prints(`\n` + n + ` bytes came into the memory of ` + gpu + `, registered ` + way + `: checksum \w+ is right\n()`)
	}
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())
}

// The kernel's udmabuf makes the DMA buffers of which the GPU memory of the
// doubles is.
func TestDMABuf(t *testing.T) {
	udmabuf.Require(t)
	for maker, gpu := range makers {
		t.Run(maker, func(t *testing.T) {
			libraries(t, maker)
			t.Setenv("GPU_DOUBLE", "dmabuf")
			transfers(t, gpu, "as a DMA buffer", "300000")
		})
	}
}

func TestByAddress(t *testing.T) {
	for maker, gpu := range makers {
		t.Run(maker, func(t *testing.T) {
			libraries(t, maker)
			t.Setenv("GPU_DOUBLE", "address")
			transfers(t, gpu, "by its address", "1", "300000")
		})
	}
}

// Managed memory needs neither a DMA buffer nor a module for peer memory where
// the processor moves the data.
func TestManaged(t *testing.T) {
	for maker, gpu := range makers {
		t.Run(maker, func(t *testing.T) {
			libraries(t, maker)
			t.Setenv("GPU_DOUBLE", "neither")
			transfersWith(t, []string{"-managed"}, gpu, "by its address", "1", "300000")
		})
	}
}

func TestMoreThanTheServerTakes(t *testing.T) {
	d := testdevice.Require(t)
	libraries(t, "AMD")
	t.Setenv("GPU_DOUBLE", "address")
	server := process.StartMain(t, "-n", "8", "-listen", d.IPv4.String()+":0")
	client := process.RunMain(t, "-n", "9", server.Prints(`listening on (\S+)\n`))
	require.Equal(t, 1, client.Wait())
	require.Equal(t, "gpu: the server takes 8 bytes, not 9\n", client.Stderr())
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.NotContains(t, server.Stderr(), "the double")
}

// Where neither way works, the error says what is missing for both.
func TestNeither(t *testing.T) {
	d := testdevice.Require(t)
	for maker, export := range map[string]string{
		"NVIDIA": "cannot be exported as a DMA buffer (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)\n",
		"AMD":    "hsa_amd_portable_export_dmabuf: status 0x1000\n",
	} {
		t.Run(maker, func(t *testing.T) {
			libraries(t, maker)
			t.Setenv("GPU_DOUBLE", "neither")
			server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
			address := server.Prints(`listening on (\S+)\n`)
			client := process.RunMain(t, address)
			require.Equal(t, 1, client.Wait())
			server.Says(`client \S+: (.+)`)
			require.Contains(t, server.Stderr(), export)
			require.Contains(t, server.Stderr(), "bad address: the processor may not read the memory, which may be a GPU's: ")
			server.Signal(os.Interrupt)
			require.Zero(t, server.Wait())
		})
	}
}

func TestNoGPU(t *testing.T) {
	libraries(t, "NVIDIA") // without the variable that says what GPU it has
	p := process.RunMain(t, "192.0.2.1:7471")
	require.Equal(t, 1, p.Wait())
	require.Contains(t, p.Stderr(), "gpu: no GPU: cuInit: CUDA_ERROR_NOT_SUPPORTED")
}
