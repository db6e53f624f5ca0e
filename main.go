// Command memcached-operator runs the controller of the Memcached API.
package main

func main() {}
