// SPDX-License-Identifier: Apache-2.0

package main

var layers = drawing{
	name:  "layers",
	title: "How the layers of Verbena fit together",
	description: "From top to bottom: programs; rsocket and transfer; rdmacm; ibverbs; the generated packages, which gen makes from facts about the C headers. " +
		"These call C's libraries, which lead to a card, or the device in user space, softroce, which is part of the program. fabric stands beside the upper layers, on the generated packages alone.",
	width: 800, height: 580,
	draw: func(c *canvas) {
		c.box("plain", rect{20, 20, 540, 44}, "programs: yours, cmd/, examples/")
		c.box("go", rect{20, 96, 200, 56}, "rsocket", "net.Conn over RDMA")
		c.box("go", rect{240, 96, 200, 56}, "transfer", "batches between processes")
		c.box("go", rect{20, 184, 420, 56}, "rdmacm", "connections, datagrams, events")
		c.box("go", rect{20, 272, 420, 72}, "ibverbs", "devices, memory, queues, batches",
			"beside it flow, devmem, share, counter, tag, efa, mlx5")
		c.box("go", rect{460, 96, 100, 248}, "fabric", "InfiniBand", "fabrics:", "nodes, links,", "counters")
		c.box("made", rect{20, 376, 540, 56}, "generated", "one Go function for each C function, every enum and struct")
		c.box("device", rect{20, 464, 260, 96}, "C's libraries", "libibverbs.so.1, librdmacm.so.1, ...", "opened at run time:", "the kernel, and a card or Soft-RoCE")
		c.box("device", rect{300, 464, 260, 96}, "softroce", "the device in user space,", "in the program: other processes,", "or other machines over UDP")

		// Each layer uses the one below; a program may use any.
		c.arrow([2]int{120, 64}, [2]int{120, 96})
		c.arrow([2]int{340, 64}, [2]int{340, 96})
		c.arrow([2]int{230, 64}, [2]int{230, 184})
		c.arrow([2]int{510, 64}, [2]int{510, 96})
		c.arrow([2]int{120, 152}, [2]int{120, 184})
		c.arrow([2]int{340, 152}, [2]int{340, 184})
		c.arrow([2]int{230, 240}, [2]int{230, 272})
		c.arrow([2]int{230, 344}, [2]int{230, 376})
		c.arrow([2]int{510, 344}, [2]int{510, 376})
		c.arrow([2]int{150, 432}, [2]int{150, 464})
		c.arrow([2]int{430, 432}, [2]int{430, 464})

		c.box("plain", rect{620, 376, 160, 56}, "gen", "the generator")
		c.box("plain", rect{620, 464, 160, 96}, "headers", "facts about the C", "API of rdma-core,", "for each version")
		c.arrow([2]int{620, 404}, [2]int{560, 404})
		c.arrow([2]int{700, 464}, [2]int{700, 432})

		c.text("head", "start", 600, 44, "Colors")
		for i, kind := range []struct{ class, text string }{
			{"go", "written by hand, in Go"}, {"made", "made by the generator"}, {"device", "the device"}, {"plain", "what is around it"},
		} {
			y := 60 + 30*i
			c.box(kind.class, rect{600, y, 24, 20}, "")
			c.text("small", "start", 634, y+15, kind.text)
		}
		c.text("small light", "start", 600, 200, "An arrow points to what")
		c.text("small light", "start", 600, 218, "a layer stands on. A")
		c.text("small light", "start", 600, 236, "program may use any.")
	},
}
