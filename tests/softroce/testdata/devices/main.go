// Devices says which devices there are, or why it cannot. With the argument first it
// takes the device of package softroce before it looks, with last afterwards.
package main

import (
	"fmt"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// use is softroce.Use, if the program has it.
var use = func() error { return nil }

func main() {
	when := ""
	if len(os.Args) > 1 {
		when = os.Args[1]
	}
	if when == "first" {
		fmt.Println("use:", use())
	}
	devices, err := ibverbs.Devices()
	var names []string
	for _, d := range devices {
		names = append(names, d.Name)
	}
	if err == nil {
		fmt.Println("devices:", names)
	} else {
		fmt.Println("devices:", err)
	}
	_, err = rdmacm.NewEventChannel()
	fmt.Println("channel:", err)
	if when == "last" {
		fmt.Println("use:", use())
	}
}
