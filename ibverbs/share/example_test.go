// SPDX-License-Identifier: Apache-2.0

package share_test

import (
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/share"
)

// Hand an open device with memory on it to another process, which this one
// starts. The other one is the example of ImportDevice.
func ExampleExportDevice() {
	var device *ibverbs.Device // opened before
	var pd *ibverbs.PD
	var mr *ibverbs.MR

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
	fmt.Println("start a process with", file.Name(), "in exec.Cmd.ExtraFiles, and tell it",
		handle, export.Handle, export.Addr, export.Len)
}

// Use the device and the memory of the process that started this one.
func ExampleImportDevice() {
	file := os.NewFile(3, "device") // the first of exec.Cmd.ExtraFiles
	defer file.Close()
	var pdHandle uint32
	var export share.MRExport // as the other process has told them

	device, err := share.ImportDevice(file)
	if errors.Is(err, errors.ErrUnsupported) {
		log.Fatal("this device's driver cannot share it: ", err)
	}
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	pd, err := share.ImportPD(device, pdHandle)
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	mr, err := share.ImportMR(pd, export)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	fmt.Printf("tell a peer: %+v\n", mr.Remote())
}
