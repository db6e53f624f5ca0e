package contract

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ListFile is the file below DiscoveryPath with the List, and its key in the ConfigMap.
const ListFile = "cluster"

// MaxVersion is the largest version that every client reads exactly: the largest safe integer of JavaScript.
const MaxVersion = 1<<53 - 1

// List is the list of servers that clients discover, as managed services define it.
// https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/AutoDiscovery.AddingToYourClientLibrary.html
type List struct {
	// Version grows with each change of the list; 0 before the first list.
	Version int64
	// Nodes are the servers, each as name|ip|port.
	Nodes []string
}

// ParseList reads what String returns. Without a valid version, there is no list. Words that are no nodes are dropped.
func ParseList(text string) (l List) {
	first, rest, _ := strings.Cut(text, "\n")
	version, err := strconv.ParseInt(first, 10, 64)
	if err != nil || version <= 0 || version > MaxVersion {
		return l
	}
	isNoNode := func(word string) bool { return strings.Count(word, "|") != 2 }
	return List{version, slices.DeleteFunc(strings.Fields(rest), isNoNode)}
}

// String returns the list as clients read it: the version, and the nodes in the next line. Without a version, it is
// empty.
func (l List) String() string {
	if l.Version == 0 {
		return ""
	}
	return fmt.Sprintf("%d\n%s\n", l.Version, strings.Join(l.Nodes, " "))
}
