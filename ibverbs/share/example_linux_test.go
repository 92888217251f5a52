// SPDX-License-Identifier: Apache-2.0

package share_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/share"
)

// Share an open device and memory. Here, both ends are in one process. Another
// process gets the file by exec.Cmd.ExtraFiles, where the first one is
// os.NewFile(3, "device"), or over a Unix socket. It must be told the handle of
// the protection domain and the MRExport.
func Example() {
	device, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	pd, err := device.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	mr, err := pd.Alloc(4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	file, err := share.ExportDevice(device)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	handle, err := share.ExportPD(pd)
	if err != nil {
		log.Fatal(err)
	}
	export, err := share.ExportMR(mr)
	if err != nil {
		log.Fatal(err)
	}

	// The other end:
	imported, err := share.ImportDevice(file)
	if errors.Is(err, errors.ErrUnsupported) {
		log.Fatal("this device's driver cannot share it: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer imported.Close()
	domain, err := share.ImportPD(imported, handle)
	if err != nil {
		log.Fatal(err)
	}
	defer domain.Close()
	memory, err := share.ImportMR(domain, export)
	if err != nil {
		log.Fatal(err)
	}
	defer memory.Close()
	fmt.Println("peers read the same memory:", memory.Remote() == mr.Remote())
	// Output: peers read the same memory: true
}
