// SPDX-License-Identifier: Apache-2.0

package stat_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/verbena-go/verbena/ibverbs/stat"
)

// Print what all ports have counted, with its unit.
func Example() {
	devices, err := stat.Default.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			for _, c := range p.Counters {
				fmt.Printf("%s/%d %s %d %s\n", d.Name, p.Port, c.Name, c.Value, c.Unit)
			}
		}
	}
}

// The kernel counts data in units of four bytes; the value is in bytes.
func ExampleSysfs() {
	sys, err := os.MkdirTemp("", "sys")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(sys)
	counters := filepath.Join(sys, "class/infiniband/mlx5_0/ports/1/counters")
	if err := os.MkdirAll(counters, 0o700); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(counters, "port_rcv_data"), []byte("1000\n"), 0o600); err != nil {
		log.Fatal(err)
	}

	device, err := stat.Sysfs(sys).Device("mlx5_0")
	if err != nil {
		log.Fatal(err)
	}
	received, _ := device.Ports[0].Counter("port_rcv_data")
	fmt.Println(received.Value, received.Unit)
	// Output: 4000 bytes
}

// Count the queue pairs of each program.
func ExampleAllResources() {
	all, err := stat.AllResources()
	if err != nil {
		log.Fatal(err)
	}
	programs := map[string]int{}
	for _, q := range all.QueuePairs {
		programs[q.Program]++ // those of the kernel have no program
	}
	for program, n := range programs {
		fmt.Println(program, n)
	}
}
